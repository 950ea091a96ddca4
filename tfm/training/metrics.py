"""The metrics of steps: read one step late, added up and reported."""

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from tfm.devices.flops import peak_flops
from tfm.io.lock import DirectoryGuard
from tfm.training.hooks import Hook
from tfm.training.loss_calls import add_sums, means
from tfm.training.non_finite import explain
from tfm.training.run_log import format_duration
from tfm.training.setup import Setup
from tfm.training.task import Batch, Data, SumAndCount

MAX_SKIPPED = 20  # skipped steps in a row, after which single bad batches cannot be the cause
log = logging.getLogger(__name__)


class StepMetrics:
    """The metrics of all steps since the last line of the log.

    The metrics of a step are read after the next step is dispatched, so that no device waits for the host.

    Args:
      setup: of the run.
      data: counts the units of a batch.
      guard: guard of the run folder.
      hooks: a `Hook` that is called after each step.
      step: number of completed steps.
      sums: {name: (sum, count)} since the last line of the log, as the checkpoint of `step` contains them.

    Attributes:
      sums: {name: (sum, count)} of the steps that were read.
    """

    def __init__(
        self,
        setup: Setup,
        data: Data,
        guard: DirectoryGuard,
        hooks: Hook,
        step: int,
        sums: Mapping[str, tuple[float, float]],
    ):
        self._setup = setup
        self._data = data
        self._guard = guard
        self._hooks = hooks
        self.sums = dict(sums)
        self._first_step = step
        self._start = time.monotonic()
        self._unread: tuple[int, Batch, Mapping[str, SumAndCount]] | None = None
        self._skipped = 0  # steps in a row that made no update
        # The speed is measured since the last line of the log, but only in this process.
        self._since = self._start
        self._count = 0
        self._steps = 0

    def put(self, step: int, batch: Batch, metrics: Mapping[str, SumAndCount], state: Any) -> None:
        """Stores the metrics of a dispatched step, and reads the metrics of the step before.

        Args:
          step: number of the step, counted from 1.
          batch: host batch of the step.
          metrics: {name: (sum, count)} on the devices.
          state: the placed state after the step.

        Raises:
          UserError: if the step before was not finite and the run must end, because `on_non_finite` is "stop"
            or `MAX_SKIPPED` steps in a row were skipped.
        """
        self.read(state)
        self._unread = step, batch, metrics

    def read(self, state: Any) -> None:
        """Reads the stored metrics, if there are any. For the arguments and the errors, see `put`."""
        if self._unread is None:
            return
        step, batch, metrics = self._unread
        self._unread = None
        metrics = jax.device_get(metrics)
        if self._must_end(step, metrics):
            raise explain(self._setup, self._data, self._guard.path, state, step, batch)
        add_sums(self.sums, metrics)
        self._count += self._data.count(batch) * jax.process_count()
        self._steps += 1
        self._hooks.on_step(step, metrics)

    def _must_end(self, step: int, metrics: Mapping[str, SumAndCount]) -> bool:
        """Returns whether the run must end because a step was not finite. Warns of each such step."""
        if not metrics["skipped"][0]:
            self._skipped = 0
            return False
        self._skipped += 1
        log.warning("Step %s made no update: its loss or gradient is not finite", f"{step:,}")
        return self._setup.config.on_non_finite == "stop" or self._skipped == MAX_SKIPPED

    def report(self, step: int) -> dict[str, float]:
        """Logs the line of a step, returns its metrics, and starts new sums.

        Also logs a warning about each loss that counts nothing.

        Returns:
          {"train/NAME": mean of a metric or a learning rate}, "train/UNIT_per_second", and, if the peak rate
          of the devices is known, "train/share_of_peak_flop_per_second".
        """
        setup, now = self._setup, time.monotonic()
        self._warn_if_nothing_counts(step)
        metrics = {f"train/{name}": mean for name, mean in self._means().items()}
        rates = {name: float(rate(step)) for name, rate in setup.rates.items()}
        metrics |= {f"train/{name}": rate for name, rate in rates.items()}
        unit, speed = setup.task.unit, self._count / (now - self._since)
        metrics[f"train/{unit}_per_second"] = speed
        share = ""
        if setup.step_flops:
            rate = setup.step_flops * self._steps / (now - self._since)
            metrics["train/share_of_peak_flop_per_second"] = rate / peak_flops()
            share = f" ({rate / peak_flops():.1%} of peak FLOP/s)"
        left = (now - self._start) / (step - self._first_step) * (setup.config.steps - step)
        log.info(
            "step %s/%s  %s  lr %s  %s %s/s%s  %s left",
            f"{step:,}",
            f"{setup.config.steps:,}",
            "  ".join(f"{name} {metrics.get(f'train/{name}', math.nan):.4f}" for name in setup.loss_names),
            " ".join(f"{rate:.2e}" for rate in rates.values()),
            f"{speed:,.0f}",
            unit,
            share,
            format_duration(left),
        )
        self.sums = {}
        self._since = now
        self._count = 0
        self._steps = 0
        return metrics

    def _means(self) -> dict[str, float]:
        """Returns the means of the metrics. With several updates, the loss is the sum of their mean losses.

        The sums of "loss" would count an update as 0 in each step in which it is not due.
        """
        averages, names = means(self.sums), self._setup.loss_names
        if len(names) > 1:
            averages["loss"] = sum(averages[name] for name in names if name in averages)
        return averages

    def _warn_if_nothing_counts(self, step: int) -> None:
        """Warns if the count of a loss is 0, because such a loss trains nothing and has no mean.

        Each update that is computed counts a gradient norm. Without one, the steps were skipped, or the
        update was not due in any of them.
        """
        for loss in self._setup.loss_names:
            _, updates = self.sums.get(f"{loss.removesuffix('loss')}gradient_norm", (0.0, 0.0))
            # The sum of several terms always counts. Each term has a separate name.
            terms = [name for name in self.sums if name.startswith(f"{loss}/")] or [loss]
            for name in terms:
                _, count = self.sums.get(name, (0.0, 0.0))
                if updates and count <= 0:
                    log.warning(
                        "The %s of the steps up to %s counts nothing and trains nothing, because the count "
                        "of its (sum, count) is %.4g. Correct the task's loss or the data.",
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
