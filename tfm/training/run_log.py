"""The log of a run, metrics.jsonl: written while it trains, and read."""

import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

import jax

from tfm.errors import UserError
from tfm.io.files import append_json_line, is_float, no_link, read_json_lines, writing
from tfm.training.hooks import Hook

METRICS_FILE = "metrics.jsonl"
RESUMED = "resumed"  # marks the line of a restart; its step is the step that the run resumes from


def read_metrics(workdir: str, up_to: int | None = None) -> list[dict[str, float]]:
    """Returns the rows of metrics.jsonl, sorted by step.

    A step can have two rows: first the row with its validation scores, then the row with names that begin
    with "train/". Each row also has "step" and "time". If a step has several rows of one kind, the last row
    counts.

    A resumed run repeats the steps after its checkpoint, possibly with other results. The result leaves out
    the rows that the run wrote for these steps before the restart. It also leaves out damaged lines, for
    example a truncated last line, and lines with values that are not numbers.

    Args:
      workdir: work directory of the run.
      up_to: largest step of the rows; None returns all.

    Raises:
      UserError: if the file is missing.
    """
    rows: dict[tuple[int, bool], dict[str, float]] = {}
    path = os.path.join(workdir, METRICS_FILE)
    if not os.path.isfile(path):
        raise UserError(
            f"Expected the metrics of a run at {path}, but the file is missing. Exports have no metrics."
        )
    lines = read_json_lines(path, {"step": int})
    for row in drop_repeated(line for line in lines if all(map(is_float, line.values()))):
        rows[row["step"], any(name.startswith("train/") for name in row)] = row
    return [row for _, row in sorted(rows.items()) if up_to is None or row["step"] <= up_to]


def drop_repeated(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the lines that a run wrote about its steps, except lines of steps that it repeated.

    Args:
      lines: lines with a "step" in the order of their file. A line with `RESUMED` marks a restart. The run
        repeats the steps after it, so that earlier lines of these steps do not count.
    """
    kept: list[dict[str, Any]] = []
    for line in lines:
        if RESUMED in line:
            kept = [earlier for earlier in kept if earlier["step"] <= line["step"]]
        else:
            kept.append(line)
    return kept


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
        self._path = os.path.join(workdir, METRICS_FILE)

    def on_start(self, step: int, compiled: jax.stages.Compiled) -> None:
        """Creates the file, or marks the restart in a file that already has lines."""
        with writing(self._path), open(self._path, "a", encoding="utf-8", opener=no_link) as file:
            has_lines = file.tell() > 0
        if has_lines:
            self.on_log(step, {RESUMED: 1})

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes {name: float}."""
        append_json_line(self._path, {"step": step, "time": round(time.time(), 3), **metrics})

    def on_evaluation(self, step: int, scores: Mapping[str, float]) -> None:
        """Writes {name: float}."""
        self.on_log(step, scores)


def format_duration(seconds: float) -> str:
    """Formats a duration: 75 becomes "1:15", 3675 becomes "1:01:15"."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
