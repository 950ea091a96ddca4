"""Reads the metrics of each step, one step late, and detects non-finite steps and divergence."""

import logging
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax

from tfm.training.config import TrainingConfig
from tfm.training.hooks import Hook
from tfm.training.reporting import METRICS_FILE, MetricAccumulator, read_metrics
from tfm.training.task import Batch, SumAndCount

MOST_SKIPPED = 20  # steps in a row: then it is not the batches
log = logging.getLogger(__name__)


class DivergenceMonitor:
    """Monitors the metrics of each step, in order.

    Args:
      config: a `TrainingConfig`.
      first_loss: of the run; None takes that of the first step that it sees.
    """

    def __init__(self, config: TrainingConfig, first_loss: float | None = None):
        self._skips = config.on_non_finite == "skip"
        self._patience = config.diverged_after
        self._first_loss = first_loss
        self._above = self._skipped = 0

    def must_end(self, step: int, metrics: Mapping[str, tuple[float, float]]) -> bool:
        """Whether the run must end after `step`, which was not finite. Warns if it need not.

        Args:
          step: counted from 1.
          metrics: of the train step, on the host.
        """
        if metrics["skipped"][0]:
            self._skipped += 1
            log.warning("Step %s made no update: its loss or gradient is not finite", f"{step:,}")
            return not self._skips or self._skipped == MOST_SKIPPED
        self._skipped = 0
        total, count = metrics["loss"]
        self._check_divergence(step, float(total) / max(float(count), 1))
        return False

    def _check_divergence(self, step, loss):
        if self._first_loss is None:
            self._first_loss = loss
        self._above = self._above + 1 if loss > self._first_loss else 0
        if self._patience and self._above == self._patience:
            self._patience = 0
            log.warning(
                "The loss has been above %.4g, where the run started, for %s steps up to step %s: "
                "it diverges; lower training.learning_rate_scale or raise training.warmup_steps",
                self._first_loss,
                f"{self._above:,}",
                f"{step:,}",
            )


class DeferredMetrics:
    """Metrics that are read one step late, once the next is dispatched: no device waits for the host.

    Args:
      monitor: a `DivergenceMonitor`.
      accumulator: adds them up.
      count: of a host batch, what it holds.
      explain: (state, step, batch) -> the error to raise where the run must end.
      hooks: a `Hook`, told of each step.
    """

    def __init__(
        self,
        monitor: DivergenceMonitor,
        accumulator: MetricAccumulator,
        count: Callable[[Batch], int],
        explain: Callable[[Any, int, Batch], Exception],
        hooks: Hook,
    ):
        self._monitor, self._accumulator, self._count = monitor, accumulator, count
        self._explain, self._hooks = explain, hooks
        self._unread: tuple[int, Batch, Mapping[str, SumAndCount]] | None = None

    def put(self, step: int, batch: Batch, metrics: Mapping[str, SumAndCount]) -> None:
        """Stores what `read` reads next: a step, its host batch, and its metrics on the devices."""
        self._unread = step, batch, metrics

    def read(self, state: Any) -> None:
        """Reads the stored metrics, if there are any.

        Args:
          state: placed, as the newest step left it.

        Raises:
          UserError: the step was not finite, and the run must end.
        """
        if self._unread is None:
            return
        step, batch, metrics = self._unread
        self._unread = None
        metrics = jax.device_get(metrics)
        if self._monitor.must_end(step, metrics):
            raise self._explain(state, step, batch)
        self._accumulator.add(metrics, self._count(batch) * jax.process_count())
        self._hooks.on_step(step, metrics)


def first_loss(workdir: str) -> float | None:
    """The first training loss that the metrics of the work directory tell, or None."""
    if not os.path.isfile(os.path.join(workdir, METRICS_FILE)):
        return None
    losses = (row.get("train/loss", math.nan) for row in read_metrics(workdir))
    return next((loss for loss in losses if math.isfinite(loss)), None)
