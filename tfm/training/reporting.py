"""Metrics of steps: added up, reported as lines on the terminal, and read back from metrics.jsonl."""

import contextlib
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence

from tfm.errors import UserError
from tfm.fields import LARGEST_INT
from tfm.io.files import read_json_lines
from tfm.schedules import Schedule
from tfm.training.task import SumAndCount

METRICS_FILE = "metrics.jsonl"
RESUMED = "resumed"  # marks the row of a start, whose step is that from which the run resumes
log = logging.getLogger(__name__)


def read_metrics(workdir: str, up_to: int | None = None) -> list[dict[str, float]]:
    """The rows of metrics.jsonl in order.

    Of rows behind the step from which the run resumed later, only those written since then count: the run
    may have gone another way. Lines that are not rows, such as a truncated last line or one with other values
    than numbers, are left out.

    Raises:
      UserError: there are none.
    """
    rows: dict[tuple[int, bool], dict[str, float]] = {}
    path = os.path.join(workdir, METRICS_FILE)
    if not os.path.isfile(path):
        raise UserError(f"Expected the metrics of a run at {path}, but there are none; an export has none.")
    for row in filter(_is_row, read_json_lines(path)):
        if RESUMED in row:
            rows = {key: old for key, old in rows.items() if old["step"] <= row["step"]}
        else:
            rows[row["step"], any(name.startswith("train/") for name in row)] = row
    return [row for _, row in sorted(rows.items()) if up_to is None or row["step"] <= up_to]


def _is_row(row):
    """Whether a line of the file has a step, and numbers by name."""
    if not isinstance(row, dict) or not isinstance(row.get("step"), int):
        return False
    return all(_is_number(value) for value in row.values())


def _is_number(value):
    """Whether JSON has a float or an integer of 64 bits there; NaN and infinity are floats."""
    return type(value) is float or (type(value) is int and abs(value) <= LARGEST_INT)


class MetricAccumulator:
    """The (sum, count) metrics of the steps since the last line of the log, and the line.

    Attributes:
      sums: {name: (sum, count)}; a resumed run begins with those of its checkpoint.
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
        self._count = 0  # of this process alone, as the time is

    def add(self, metrics: Mapping[str, SumAndCount], count: int) -> None:
        """metrics: {name: (sum, count)} on the host; count: what the batch holds, in the unit of the task."""
        add_sums(self.sums, metrics)
        self._count += count

    def report(self, step: int) -> dict[str, float]:
        """Logs the line of `step`, returns its metrics and starts the next."""
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

    def _warn_if_nothing_counts(self, step):
        """Warns of a loss without a count, which trains nothing and has no mean to show."""
        skipped, steps = self.sums.get("skipped", (0.0, 0.0))
        for name in self._losses:
            _, count = self.sums.get(name, (0.0, 0.0))
            if skipped < steps and count <= 0:
                log.warning(
                    "The %s of the steps up to %s counts nothing, and trains nothing: its (sum, count) has a "
                    "count of %.4g; correct the task's loss or the data.",
                    name,
                    f"{step:,}",
                    count,
                )

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Time in here does not count: evaluation and checkpoints are not training speed."""
        began = time.monotonic()
        yield
        self._since += time.monotonic() - began


def add_sums(sums: dict[str, tuple[float, float]], metrics: Mapping[str, SumAndCount]) -> None:
    """Adds the (sum, count) pairs of a step or a batch to those before it, in float64 on the host."""
    for name, (total, count) in metrics.items():
        old_total, old_count = sums.get(name, (0.0, 0.0))
        sums[name] = (old_total + float(total), old_count + float(count))


def means(sums: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """{name: sum / count}; without those that counted nothing, as where each step was skipped."""
    return {name: total / count for name, (total, count) in sums.items() if count}


def format_duration(seconds: float) -> str:
    """75 -> '1:15', 3675 -> '1:01:15'."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
