"""Writes the metrics of a run into metrics.jsonl."""

import io
import json
import os
import time
from collections.abc import Mapping

import jax

from tfm.io.files import end_last_line, writing
from tfm.training.hooks import Hook, Outcome
from tfm.training.reporting import METRICS_FILE, RESUMED


class MetricsWriter(Hook):
    """A hook that writes the metrics of a run into its work directory.

    Each line of metrics.jsonl is a JSON object: {"step": int, "time": seconds since the epoch, name: float,
    ...}. If the file already has lines, the writer first adds a line with "resumed". Earlier lines of later
    steps do not count then, because the run repeats these steps.

    Args:
      workdir: work directory of the run.

    Raises:
      UserError: from any method, if an I/O operation fails.
    """

    def __init__(self, workdir: str):
        self._workdir = workdir
        self._file: io.TextIOWrapper | None = None

    def on_start(self, step: int, compiled: jax.stages.Compiled) -> None:
        """Opens the file."""
        path = os.path.join(self._workdir, METRICS_FILE)
        with writing(path):
            end_last_line(path)
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115
            has_rows = self._file.tell() > 0
        if has_rows:
            self._write(step, {RESUMED: 1})

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes {name: float}."""
        self._write(step, metrics)

    def on_evaluation(self, step: int, scores: Mapping[str, float]) -> None:
        """Writes {name: float}."""
        self._write(step, scores)

    def close(self, outcome: Outcome) -> None:
        """Closes the file."""
        if self._file is not None:
            with writing(self._workdir), self._file:
                pass

    def _write(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self._file is not None, "on_start opens the file"
        with writing(self._workdir):
            self._file.write(json.dumps({"step": step, "time": round(time.time(), 3), **metrics}) + "\n")
            self._file.flush()
