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
from tfm.errors import UserError
from tfm.io.lock import DirectoryGuard
from tfm.io.provenance import record_start
from tfm.io.signals import Interrupted, Preemption, SignalHandler
from tfm.matmul import bfloat16_library
from tfm.memory import explain_out_of_memory
from tfm.training.config import TrainingConfig
from tfm.training.divergence import DeferredMetrics, DivergenceMonitor, first_losses
from tfm.training.early_stopping import EarlyStopping
from tfm.training.hooks import Hook, Hooks
from tfm.training.metrics_writer import MetricsWriter
from tfm.training.non_finite import explain
from tfm.training.reporting import MetricAccumulator
from tfm.training.samples import SamplesWriter
from tfm.training.setup import Setup, open_checkpoints, restore_or_initialize
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
    began = time.monotonic()
    signals = signals or SignalHandler()
    with contextlib.ExitStack() as stack:
        if jax.process_index() == 0:  # the first of several hosts writes
            hooks = [*make_writers(task, config, workdir), *hooks]
        called = stack.enter_context(Hooks(hooks))
        setup = Setup(task, config)
        guard = guard or stack.enter_context(contextlib.closing(DirectoryGuard(workdir)))
        checkpoints = stack.enter_context(
            contextlib.closing(open_checkpoints(task, config, workdir, guard, setup.assets()))
        )
        pool = stack.enter_context(ThreadPoolExecutor(2, "compilation"))
        first, get_state, progress = restore_or_initialize(setup, checkpoints, initial_variables, pool)
        state = LoopState.from_progress(first, progress)
        if state.is_over(config) and not state.unevaluated:
            log.info("Nothing to do: %s", state.describe_end(config))
            return
        finish_compiling = setup.start_compiling(pool)
        data = task.open_data()
        check_data(data)
        guard.check()  # preparing may have taken long, and what follows makes files and folders
        record_start(workdir, task.config, data.identity(), state.step, bfloat16_library)
        devices = f"{setup.partitioner.devices} {jax.default_backend()}"
        log.info("%s parameters, %s device(s)", f"{setup.parameters:,}", devices)
        example = data.example()
        step, _, compiled = finish_compiling(example)
        with explain_out_of_memory(config.gradient_accumulation_steps):
            state.state = get_state()
            setup.check_padding(example, state.state)
        del get_state  # which may keep the restored state in memory
        guard.check()
        called.on_start(state.step, compiled)
        del compiled
        loop = _Loop(setup, data, checkpoints, guard, called, Preemption(signals), progress)
        with signals.deferred():
            loop.run(step, state, began)
            checkpoints.wait()
        if state.signal and not (state.is_done(config) or state.stopping.exhausted(config.patience)):
            log.info("Saved step %s: the same command resumes from there", f"{state.step:,}")
            raise SystemExit(128 + state.signal)


def make_writers(task: Task, config: TrainingConfig, workdir: str) -> list[Hook]:
    """Returns the hooks that write the metrics and samples of a run and send them to its trackers.

    Raises:
      UserError: if the package of a tracker is missing.
    """
    trackers = [TrackerHook(name, workdir, task.config) for name in config.trackers]
    # The samples are written before trackers look for the pictures.
    return [MetricsWriter(workdir), SamplesWriter(workdir), *trackers]


@dataclasses.dataclass
class LoopState:
    """The progress of a run, which changes from step to step.

    Attributes:
      step: number of completed training steps.
      stopping: the evaluations so far.
      unevaluated: whether a signal interrupted the evaluation of `step`. The next start evaluates it.
      signal: number of the signal that asked the run to end, or 0.
      state: the placed `TrainState`, or None before it is placed on the devices.
    """

    step: int
    stopping: EarlyStopping
    unevaluated: bool
    signal: int = 0
    state: TrainState | None = None

    @classmethod
    def from_progress(cls, step: int, progress: dict[str, Any]) -> "LoopState":
        """Returns the progress that was saved with the state of a step, or that of a new run for {}."""
        stopping = EarlyStopping(*progress.get("evaluations", ()))
        return cls(step, stopping, progress.get("unevaluated", False))

    def is_done(self, config: TrainingConfig) -> bool:
        """Returns whether the run has completed and evaluated all training steps."""
        return self.step >= config.steps and not self.unevaluated

    def is_over(self, config: TrainingConfig) -> bool:
        """Returns whether the run makes no further step."""
        ended = self.signal or self.unevaluated or self.stopping.exhausted(config.patience)
        return self.step >= config.steps or bool(ended)

    def describe_end(self, config: TrainingConfig) -> str:
        """Returns the reason why a run that is over has ended."""
        if self.stopping.exhausted(config.patience):
            return str(self.stopping)
        return f"this run has made its {config.steps:,} steps"


class _Loop:
    """The training loop of one process."""

    def __init__(
        self,
        setup: Setup,
        data: Data,
        checkpoints: CheckpointStore,
        guard: DirectoryGuard,
        hooks: Hook,
        preemption: Preemption,
        progress: dict[str, Any],
    ):
        self._task, self._config, self._setup, self._data = setup.task, setup.config, setup, data
        self._checkpoints, self._guard, self._hooks, self._preemption = checkpoints, guard, hooks, preemption
        self._sums = progress.get("sums", {})
        self._norm = jax.jit(optax.tree.norm)

    def run(self, step: Callable, state: LoopState, began: float) -> None:
        """Trains until `state.is_over`.

        Args:
          step: the compiled train step.
          state: changed as the run proceeds.
          began: when the command began, by the monotonic clock.
        """
        config, first = self._config, state.step
        self._metrics = MetricAccumulator(
            first, config.steps, self._setup.rates, self._setup.loss_names, self._task.unit, self._sums
        )
        self._deferred = DeferredMetrics(
            DivergenceMonitor(config, self._setup.loss_names, first_losses(self._guard.path)),
            self._metrics,
            self._data.count,
            self._explain,
            self._hooks,
        )
        if state.unevaluated:
            self._save(state, evaluates=True)
        batches = self._data.train_batches(first)
        while not state.is_over(config):
            metrics = self._update(step, state, next(batches))
            if state.step == first + 1:
                jax.block_until_ready(metrics)
                log.info("First step finished after %.1f s", time.monotonic() - began)
            state.signal = self._preemption()
            last = state.step == config.steps
            evaluates = last or state.step % config.eval_every == 0
            if last or state.step % config.log_every == 0:
                self._log(state)
            if evaluates or state.signal or state.step % config.checkpoint_every == 0:
                self._save(state, evaluates)
        if state.unevaluated:
            state.signal = self._preemption()
        if state.stopping.exhausted(config.patience):
            log.info("Stopping at step %s: %s", f"{state.step:,}", state.stopping)

    def _update(self, step: Callable, state: LoopState, batch: Batch) -> Any:
        """Dispatches one update, and reads the metrics of the one before."""
        partitioner = self._setup.partitioner
        state.step += 1
        state.state, metrics = step(state.state, partitioner.place_batch(batch), self._setup.constants)
        self._deferred.read(state.state)
        self._deferred.put(state.step, batch, partitioner.fetch_metrics(metrics))
        return metrics

    def _log(self, state):
        self._deferred.read(state.state)
        self._guard.check()
        self._checkpoints.check()
        norm = self._norm(self._setup.partitioner.fetch(state.state.params))
        means = self._metrics.report(state.step) | {"train/parameter_norm": float(norm)}
        self._hooks.on_log(state.step, means)

    def _save(self, state: LoopState, evaluates: bool) -> None:
        """Saves a checkpoint, after an evaluation where there is one."""
        # A checkpoint contains the sums of all steps since the last log line, including its own step.
        self._deferred.read(state.state)
        with self._metrics.paused():
            fetched = self._setup.partitioner.fetch(state.state)
            scores = self._evaluate(state.step, fetched) if evaluates else None
            again, state.unevaluated = state.unevaluated, evaluates and scores is None
            if again and state.unevaluated:
                return  # the checkpoint already says so
            best = self._task.best
            if scores and best.metric in scores:
                state.stopping = state.stopping.after(scores[best.metric], best)
            progress = {
                "sums": dict(self._metrics.sums),
                "evaluations": state.stopping,
                "unevaluated": state.unevaluated,
            }
            if again:
                self._checkpoints.add_scores(state.step, scores or {}, progress)
            else:
                self._checkpoints.save(state.step, fetched.items(), scores=scores, progress=progress)

    def _evaluate(self, step: int, state: TrainState) -> dict[str, float] | None:
        """Returns {name: score}, or None if a signal interrupted the evaluation.

        A resumed run makes an interrupted evaluation again.
        """
        began = time.monotonic()
        try:
            with self._preemption.interrupting():
                variables = self._setup.partitioner.fetch_variables(state.variables)
                evaluation = self._task.evaluate(variables, self._data)
        except Interrupted:
            log.info("validation at step %s was cut short; it is made when the run resumes", f"{step:,}")
            return None
        self._guard.check()
        scores, samples = _check_evaluation(evaluation)
        self._hooks.on_evaluation(step, scores)
        if samples is not None and (samples.rows or samples.pictures):
            self._hooks.on_samples(step, samples)
        shown = "  ".join(f"{name.removeprefix('validation/')} {value:.4g}" for name, value in scores.items())
        log.info("validation at step %s: %s  (%.0f s)", f"{step:,}", shown, time.monotonic() - began)
        return scores

    def _explain(self, state, step, batch):
        self._guard.check()  # `explain` creates a folder in the run folder
        return explain(self._setup, self._data, self._guard.path, state, step, batch)


def _check_evaluation(evaluation: Any) -> Evaluation:
    """Raises a UserError unless this is what `Task.evaluate` has to return."""
    if isinstance(evaluation, Evaluation):
        return evaluation
    raise UserError(
        f"Expected the task's evaluate to return an Evaluation of scores, got {type(evaluation).__name__}: "
        'return Evaluation({"validation/...": value}).'
    )
