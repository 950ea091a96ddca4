"""The phases of a training step: update, log, save and evaluate. Depends on no particular model or task."""

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax

from tfm.checkpoints.store import CheckpointStore
from tfm.errors import UserError
from tfm.io.lock import DirectoryGuard
from tfm.io.signals import Interrupted, Preemption
from tfm.training.hooks import Hook
from tfm.training.metrics import StepMetrics
from tfm.training.scores import Scores, check_best
from tfm.training.setup import Setup
from tfm.training.step import TrainState
from tfm.training.task import Batch, Data, Evaluation

log = logging.getLogger(__name__)


@dataclasses.dataclass
class Loop:
    """A run in training, and the phases of a step in their order: update, log, save, evaluate.

    Attributes:
      setup, data, checkpoints, scores, guard, hooks, preemption: of the run.
      state: the placed state.
      step: number of completed steps.
      sums: {name: (sum, count)} of the metrics since the last line of the log, as the checkpoint of `step`
        contains them.
      signal: number of the signal that requested the end of the run, or 0.
      metrics: the metrics of the steps.
    """

    setup: Setup
    data: Data
    checkpoints: CheckpointStore
    scores: Scores
    guard: DirectoryGuard
    hooks: Hook
    preemption: Preemption
    state: TrainState
    step: int
    sums: dataclasses.InitVar[Mapping[str, tuple[float, float]]]
    signal: int = 0
    metrics: StepMetrics = dataclasses.field(init=False)

    def __post_init__(self, sums: Mapping[str, tuple[float, float]]) -> None:
        self.metrics = StepMetrics(self.setup, self.data, self.guard, self.hooks, self.step, sums)
        self._norm = jax.jit(optax.tree.norm)

    def run(self, train_step: Callable, began: float) -> None:
        """Trains until all steps are completed, the scores stop improving, or a signal ends the run.

        Begins with the evaluation of the first state if an earlier start was interrupted in it. After a
        signal, it saves a checkpoint and returns without an evaluation.

        Args:
          train_step: the compiled train step.
          began: when the command began, by the monotonic clock.
        """
        config, first = self.setup.config, self.step
        if self.scores.is_due(self.step, config):  # a signal or a kill interrupted this evaluation
            self.evaluate()
        end = self.scores.describe_end(self.step, config)
        batches = self.data.train_batches(first)
        while not self.signal and not end:
            metrics = self.update(train_step, next(batches))
            if self.step == first + 1:
                jax.block_until_ready(metrics)
                log.info("First step finished after %.1f s", time.monotonic() - began)
            self.signal = self.preemption()
            is_due = self.scores.is_due(self.step, config)
            if self.step == config.steps or self.step % config.log_every == 0:
                self.log()
            if is_due or self.signal or self.step % config.checkpoint_every == 0:
                self.save()
            if is_due and not self.signal:
                self.evaluate()
                end = self.scores.describe_end(self.step, config)
        if end and self.step < config.steps:
            log.info("Stopping at step %s: %s", f"{self.step:,}", end)

    def update(self, train_step: Callable, batch: Batch) -> Any:
        """Dispatches one update, reads the metrics of the update before, and returns the new metrics."""
        partitioner = self.setup.partitioner
        self.state, metrics = train_step(self.state, partitioner.place_batch(batch), self.setup.constants)
        self.step += 1
        self.metrics.put(self.step, batch, partitioner.fetch(metrics), self.state)
        return metrics

    def log(self) -> None:
        """Logs the means of the metrics since the last line of the log, and passes them to the hooks.

        Raises:
          UserError: if the run folder was moved, a save in the background failed, or a step was not finite.
        """
        self.metrics.read(self.state)
        self.guard.check()
        self.checkpoints.check()
        norm = self._norm(self.setup.partitioner.fetch(self.state.params))
        self.hooks.on_log(self.step, self.metrics.report(self.step) | {"train/parameter_norm": float(norm)})

    def save(self) -> None:
        """Saves a checkpoint. It is written while training continues."""
        self.metrics.read(self.state)  # the sums of a checkpoint contain its own step
        with self.metrics.paused():
            tree = self.setup.partitioner.fetch(self.state).items()
            self.checkpoints.save(self.step, tree, progress={"sums": dict(self.metrics.sums)})

    def evaluate(self) -> None:
        """Scores the state, writes the scores, and deletes checkpoints that are no longer kept.

        If a signal interrupts the evaluation, nothing is written, and the next start evaluates the state.

        Raises:
          UserError: if the task returns no `Evaluation` or lacks the score that selects the best checkpoint,
            the run folder was moved, or the scores or a checkpoint cannot be written.
        """
        with self.metrics.paused():
            began, partitioner = time.monotonic(), self.setup.partitioner
            try:
                with self.preemption.interrupting():
                    variables = partitioner.fetch_variables(partitioner.fetch(self.state.variables))
                    evaluation = self.setup.task.evaluate(variables, self.data)
            except Interrupted:
                log.info("validation at step %s was cut short; the next start repeats it", f"{self.step:,}")
                self.signal = self.preemption()
                return
            self.guard.check()
            scores, samples = _check_evaluation(evaluation)
            check_best(self.setup.task, self.setup.config, scores)
            self.hooks.on_evaluation(self.step, scores)
            if samples is not None and (samples.rows or samples.pictures):
                self.hooks.on_samples(self.step, samples)
            self.checkpoints.wait()  # a step with scores has a checkpoint
            self.scores.add(self.step, scores)
            self.checkpoints.delete_old()
        shown = "  ".join(f"{name.removeprefix('validation/')} {value:.4g}" for name, value in scores.items())
        log.info("validation at step %s: %s  (%.0f s)", f"{self.step:,}", shown, time.monotonic() - began)


def _check_evaluation(evaluation: Any) -> Evaluation:
    """Raises a UserError unless this is what `Task.evaluate` has to return."""
    if isinstance(evaluation, Evaluation):
        return evaluation
    raise UserError(
        f"Expected the task's evaluate to return an Evaluation of scores, got {type(evaluation).__name__}: "
        'return Evaluation({"validation/...": value}).'
    )
