"""Writes the metrics of a run: rows of JSONL."""

import json
import os
import time
from collections.abc import Mapping

from tfm.io.files import end_last_line, writing
from tfm.training.hooks import Hook
from tfm.training.reporting import METRICS_FILE, RESUMED


class MetricsWriter(Hook):
    """Writes the metrics of a run into its work directory.

    metrics.jsonl has one object a line: {"step": int, "time": seconds since the epoch, name: float, ...}.
    Where there are lines already, one with "resumed" says that earlier ones of later steps do not count.

    Args:
      workdir: of the run.
      step: updates made before.

    Raises:
      UserError: from any method, an I/O error.
    """

    def __init__(self, workdir: str, step: int = 0):
        self._workdir = workdir
        path = os.path.join(workdir, METRICS_FILE)
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

    def close(self) -> None:
        """Closes the file."""
        with writing(self._workdir), self._file:
            pass

    def _write(self, step, metrics):
        with writing(self._workdir):
            self._file.write(json.dumps({"step": step, "time": round(time.time(), 3)} | metrics) + "\n")
            self._file.flush()
