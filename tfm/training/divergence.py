"""Reads the metrics of each step, one step late, and detects non-finite steps and divergence."""

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from tfm.training.config import TrainingConfig
from tfm.training.hooks import Hook
from tfm.training.reporting import METRICS_FILE, MetricAccumulator, means, read_metrics
from tfm.training.task import Batch, SumAndCount

MOST_SKIPPED = 20  # skipped steps in a row, after which single bad batches cannot be the cause
log = logging.getLogger(__name__)


class DivergenceMonitor:
    """Monitors the metrics of each step, in order.

    Args:
      config: a `TrainingConfig`.
      losses: names of the metrics that are the losses of the updates.
      first_losses: {name: first loss of the run}. Missing losses are taken from the first step.
    """

    def __init__(
        self,
        config: TrainingConfig,
        losses: Sequence[str] = ("loss",),
        first_losses: Mapping[str, float] | None = None,
    ):
        self._skips = config.on_non_finite == "skip"
        self._patience = config.diverged_after
        self._losses, self._first_losses = losses, dict(first_losses or {})
        self._above = self._skipped = 0

    def must_end(self, step: int, metrics: Mapping[str, tuple[float, float]]) -> bool:
        """Returns whether the run must end because `step` was not finite. Logs a warning for each such step.

        Args:
          step: number of the step, counted from 1.
          metrics: metrics of the step, on the host.
        """
        if metrics["skipped"][0]:
            self._skipped += 1
            log.warning("Step %s made no update: its loss or gradient is not finite", f"{step:,}")
            return not self._skips or self._skipped == MOST_SKIPPED
        self._skipped = 0
        self._check_divergence(step, means({name: metrics[name] for name in self._losses}))
        return False

    def _check_divergence(self, step, losses):
        """Counts the steps in a row in which no update had a loss below its first loss.

        The losses of adversaries rise in turn, so that a single loss above its start is no divergence.
        """
        for name, loss in losses.items():
            self._first_losses.setdefault(name, loss)
        is_above = all(loss > self._first_losses[name] for name, loss in losses.items())
        self._above = self._above + 1 if losses and is_above else 0
        if self._patience and self._above == self._patience:
            self._patience = 0
            log.warning(
                "The loss has been above %s, where the run started, for %s steps up to step %s: "
                "it diverges; lower training.learning_rate_scale or raise training.warmup_steps",
                ", ".join(f"{self._first_losses[name]:.4g}" for name in self._losses),
                f"{self._above:,}",
                f"{step:,}",
            )


class DeferredMetrics:
    """Metrics that are read after the next step is dispatched, so that no device waits for the host.

    Args:
      monitor: decides whether the run must end.
      accumulator: adds the metrics up.
      count: returns the number of units, such as tokens, of a host batch.
      explain: (state, step, batch) -> the error to raise if the run must end.
      hooks: a `Hook` that is called after each step.
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
        """Stores a step, its host batch and its metrics on the devices for the next call of `read`."""
        self._unread = step, batch, metrics

    def read(self, state: Any) -> None:
        """Reads the stored metrics, if there are any.

        Args:
          state: the placed state after the newest step.

        Raises:
          UserError: if the step was not finite and the run must end.
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


def first_losses(workdir: str) -> dict[str, float]:
    """Returns {name: first finite value} of the training losses that the metrics of a run folder contain."""
    if not os.path.isfile(os.path.join(workdir, METRICS_FILE)):
        return {}
    losses: dict[str, float] = {}
    for row in read_metrics(workdir):
        for name, value in row.items():
            if name.startswith("train/") and name.endswith("loss") and math.isfinite(value):
                losses.setdefault(name.removeprefix("train/"), value)
    return losses
