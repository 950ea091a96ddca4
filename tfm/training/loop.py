"""The training loop: batches in, checkpoints and metrics out. Knows no model and no task by name."""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import optax

from tfm.checkpoints.store import CheckpointStore
from tfm.devices.memory import explain_out_of_memory
from tfm.errors import UserError
from tfm.io.lock import DirectoryGuard
from tfm.io.provenance import check_same_data, record_start
from tfm.io.signals import Interrupted, Preemption, SignalHandler
from tfm.training.config import TrainingConfig
from tfm.training.hooks import Hook, Hooks
from tfm.training.metrics import StepMetrics
from tfm.training.run_log import MetricsWriter
from tfm.training.samples import SamplesWriter
from tfm.training.scores import Scores
from tfm.training.setup import Setup, open_checkpoints
from tfm.training.step import TrainState
from tfm.training.task import Batch, Data, Evaluation, Task, Variables, check_data
from tfm.training.trackers.hook import TrackerHook

log = logging.getLogger(__name__)


def train(
    task: Task,
    config: TrainingConfig,
    workdir: str,
    *,
    initial_variables: Callable[[Variables], Variables] | None = None,
    signals: SignalHandler | None = None,
    guard: DirectoryGuard | None = None,
    hooks: Iterable[Hook] = (),
) -> None:
    """Trains up to `config.steps`; a run that was stopped resumes from its newest intact checkpoint.

    Args:
      task: see `tfm.training.task`.
      config: the procedure.
      workdir: folder of the run.
      initial_variables: returns the variables of a new run, given random variables; None takes the random
        variables. It is not called for a run that has a checkpoint.
      signals: tells whether a signal asks the run to end; None for none.
      guard: of the work directory, if this process has locked it; None makes one.
      hooks: are called while it trains, and closed at its end.

    Raises:
      SystemExit: 128 + the signal's number, after a run that was asked to end has saved its state.
      UserError: if the checkpoint belongs to another model or tokenizer, all checkpoints are damaged, the
        data cannot be used, a tracker is not installed, a step needs more memory than a device has, a step is
        not finite, or the run folder was deleted, moved or replaced.
    """
    began, signals = time.monotonic(), signals or SignalHandler()
    with contextlib.ExitStack() as stack:
        if jax.process_index() == 0:  # the first of several hosts writes
            trackers = [TrackerHook(name, workdir, task.config) for name in config.trackers]
            # The samples are written before trackers look for the pictures.
            hooks = [MetricsWriter(workdir), SamplesWriter(workdir), *trackers, *hooks]
        called = stack.enter_context(Hooks(hooks))
        setup = Setup(task, config)
        guard = guard or stack.enter_context(contextlib.closing(DirectoryGuard(workdir)))
        scores = Scores(workdir, task.best)
        checkpoints = stack.enter_context(
            contextlib.closing(open_checkpoints(task, config, workdir, guard, setup.assets(), scores))
        )
        newest = checkpoints.recover()
        step = newest or 0
        scores.drop_after(step)
        end = scores.describe_end(step, config)
        if end and not scores.is_due(step, config):
            log.info("Nothing to do: %s", end)
            return
        data = task.open_data()
        check_data(data)
        check_same_data(workdir, data.identity(), step)
        example = data.example()
        pool = stack.enter_context(ThreadPoolExecutor(1, "compilation"))
        compiling = pool.submit(setup.compile_step, example)  # while this thread makes the state
        with explain_out_of_memory(config.gradient_accumulation_steps):
            state = setup.make_state(checkpoints, newest, initial_variables)
            train_step, compiled = compiling.result()
            setup.check_padding(example, state)
        guard.check()  # preparing may have taken long, and what follows makes files and folders
        devices = f"{setup.partitioner.devices} {jax.default_backend()}"
        log.info("%s parameters, %s device(s)", f"{setup.parameters:,}", devices)
        called.on_start(step, compiled)
        del compiled
        if initial_variables is not None and newest is None:
            # The run resumes with these variables whenever it is stopped. A start that fails earlier saves
            # nothing, so that every field of its config may still change.
            checkpoints.save(0, setup.partitioner.fetch(state).items())
        # The last preparation, because a run with a record counts as started.
        record_start(workdir, task.config, data.identity(), step)
        sums = checkpoints.progress(step).get("sums", {}) if newest is not None else {}
        metrics = StepMetrics(setup, data, guard, called, step, sums)
        preemption = Preemption(signals)
        loop = Loop(setup, data, checkpoints, scores, guard, called, preemption, metrics, state, step)
        del state  # the first step donates it
        with signals.deferred():
            loop.run(train_step, began)
            loop.checkpoints.wait()
        is_complete = scores.describe_end(loop.step, config) and not scores.is_due(loop.step, config)
        if loop.signal and not is_complete:
            log.info("Saved step %s: the same command resumes from there", f"{loop.step:,}")
            raise SystemExit(128 + loop.signal)


@dataclasses.dataclass
class Loop:
    """A run in training, and the phases of a step in their order: update, log, save, evaluate.

    Attributes:
      setup, data, checkpoints, scores, guard, hooks, preemption, metrics: of the run.
      state: the placed state.
      step: number of completed steps.
      signal: number of the signal that asked the run to end, or 0.
    """

    setup: Setup
    data: Data
    checkpoints: CheckpointStore
    scores: Scores
    guard: DirectoryGuard
    hooks: Hook
    preemption: Preemption
    metrics: StepMetrics
    state: TrainState
    step: int
    signal: int = 0

    def __post_init__(self):
        self._norm = jax.jit(optax.tree.norm)

    def run(self, train_step: Callable, began: float) -> None:
        """Trains until all steps are completed, the scores stop improving, or a signal asks the run to end.

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
        """Logs the means of the metrics since the last line of the log."""
        self.metrics.read(self.state)
        self.guard.check()
        self.checkpoints.check()
        norm = self._norm(self.setup.partitioner.fetch(self.state.params))
        self.hooks.on_log(self.step, self.metrics.report(self.step) | {"train/parameter_norm": float(norm)})

    def save(self) -> None:
        """Saves a checkpoint, which is written while training continues."""
        self.metrics.read(self.state)  # the sums of a checkpoint contain its own step
        with self.metrics.paused():
            tree = self.setup.partitioner.fetch(self.state).items()
            self.checkpoints.save(self.step, tree, progress={"sums": dict(self.metrics.sums)})

    def evaluate(self) -> None:
        """Scores the state. If a signal interrupts this, the next start finds no score and evaluates it."""
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
