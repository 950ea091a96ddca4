"""Adds up the metrics of steps, logs their means, and reads metrics.jsonl."""

import contextlib
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfm.errors import UserError
from tfm.fields import LARGEST_INT
from tfm.io.files import read_json_lines
from tfm.schedules import Schedule
from tfm.training.task import SumAndCount

METRICS_FILE = "metrics.jsonl"
RESUMED = "resumed"  # marks the row of a restart; its step is the step that the run resumes from
log = logging.getLogger(__name__)


def read_metrics(workdir: str, up_to: int | None = None) -> list[dict[str, float]]:
    """Returns the rows of metrics.jsonl, sorted by step.

    A resumed run repeats the steps after its checkpoint, possibly with other results. The rows that it wrote
    for these steps before the restart are left out. So are damaged lines, for example a truncated last line.

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
    for row in filter(_is_row, read_json_lines(path)):
        if RESUMED in row:
            rows = {key: old for key, old in rows.items() if old["step"] <= row["step"]}
        else:
            rows[row["step"], any(name.startswith("train/") for name in row)] = row
    return [row for _, row in sorted(rows.items()) if up_to is None or row["step"] <= up_to]


def _is_row(row: Any) -> bool:
    """Returns whether a line of the file is an object with a step and numbers by name."""
    if not isinstance(row, dict) or not isinstance(row.get("step"), int):
        return False
    return all(_is_number(value) for value in row.values())


def _is_number(value: Any) -> bool:
    """Returns whether a value is a float, including NaN and infinity, or an integer of at most 64 bits."""
    return type(value) is float or (type(value) is int and abs(value) <= LARGEST_INT)


class MetricAccumulator:
    """Adds up the (sum, count) metrics of steps, and logs their means as a line of progress.

    Args:
      first_step: number of completed steps at the start of this process.
      last_step: last step of the run.
      rates: {name: learning-rate schedule}.
      losses: names of the losses.
      unit: the unit of the counts, for example "tokens".
      sums: initial `sums`, from the checkpoint of a resumed run.

    Attributes:
      sums: {name: (sum, count)} of the steps since the last line.
    """

    def __init__(
        self,
        first_step: int,
        last_step: int,
        rates: Mapping[str, Schedule],
        losses: Sequence[str],
        unit: str,
        sums: Mapping[str, tuple[float, float]] | None = None,
    ):
        self._first, self._last, self._unit = first_step, last_step, unit
        self._rates, self._losses = rates, losses
        self._start = self._since = time.monotonic()
        self.sums = dict(sums or {})
        self._count = 0  # only since the start of this process, as the time

    def add(self, metrics: Mapping[str, SumAndCount], count: int) -> None:
        """Adds the metrics of a step.

        Args:
          metrics: {name: (sum, count)}, on the host.
          count: size of the batch in the unit of the task.
        """
        add_sums(self.sums, metrics)
        self._count += count

    def report(self, step: int) -> dict[str, float]:
        """Logs the line of `step`, returns its metrics, and starts new sums."""
        now = time.monotonic()
        self._warn_if_nothing_counts(step)
        metrics = {f"train/{name}": mean for name, mean in means(self.sums).items()}
        rates = {name: float(rate(step)) for name, rate in self._rates.items()}
        metrics |= {f"train/{name}": rate for name, rate in rates.items()}
        rate = self._count / (now - self._since)
        metrics[f"train/{self._unit}_per_second"] = rate
        left = (now - self._start) / (step - self._first) * (self._last - step)
        log.info(
            "step %s/%s  %s  lr %s  %s %s/s  %s left",
            f"{step:,}",
            f"{self._last:,}",
            "  ".join(f"{name} {metrics.get(f'train/{name}', math.nan):.4f}" for name in self._losses),
            " ".join(f"{rate:.2e}" for rate in rates.values()),
            f"{rate:,.0f}",
            self._unit,
            format_duration(left),
        )
        self._since, self.sums, self._count = now, {}, 0
        return metrics

    def _warn_if_nothing_counts(self, step: int) -> None:
        """Warns if the count of a loss is 0, because such a loss trains nothing and has no mean."""
        skipped, steps = self.sums.get("skipped", (0.0, 0.0))
        for name in self._losses:
            _, count = self.sums.get(name, (0.0, 0.0))
            if skipped < steps and count <= 0:
                log.warning(
                    "The %s of the steps up to %s counts nothing and trains nothing, because the count of "
                    "its (sum, count) is %.4g. Correct the task's loss or the data.",
                    name,
                    f"{step:,}",
                    count,
                )

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Excludes the time inside the context, for example of an evaluation, from the training speed."""
        began = time.monotonic()
        yield
        self._since += time.monotonic() - began


def add_sums(sums: dict[str, tuple[float, float]], metrics: Mapping[str, SumAndCount]) -> None:
    """Adds the (sum, count) pairs of a step or a batch to `sums` in place, as Python floats."""
    for name, (total, count) in metrics.items():
        old_total, old_count = sums.get(name, (0.0, 0.0))
        sums[name] = (old_total + float(total), old_count + float(count))


def means(sums: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Returns {name: sum / count}. Leaves out names with count 0, for example if all steps were skipped."""
    return {name: total / count for name, (total, count) in sums.items() if count}


def format_duration(seconds: float) -> str:
    """Formats a duration: 75 becomes "1:15", 3675 becomes "1:01:15"."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
