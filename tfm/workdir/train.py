"""Trains a task in the folder of a run. A run resumes from its newest intact checkpoint."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable

import jax

from tfm.config import save
from tfm.io.lock import DirectoryGuard
from tfm.io.signals import Preemption, SignalHandler
from tfm.training.config import TrainingConfig
from tfm.training.hooks import Hook, Hooks
from tfm.training.loop import Loop
from tfm.training.metrics import StepMetrics
from tfm.training.run_log import MetricsWriter
from tfm.training.samples import SamplesWriter
from tfm.training.scores import Scores, find_best
from tfm.training.setup import Setup, open_checkpoints
from tfm.training.task import Data, Task, Variables, check_contract
from tfm.training.trackers.hook import TrackerHook
from tfm.workdir.runs import config_path
from tfm.workdir.starts import check_same_data, record_start

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
    """Trains up to `config.steps`. A run that was stopped resumes from its newest intact checkpoint.

    Args:
      task: see `tfm.training.task`.
      config: the procedure.
      workdir: folder of the run.
      initial_variables: returns the variables of a new run, given random variables. None takes the random
        variables. It is not called for a run that has a checkpoint.
      signals: reports whether a signal requests the end of the run. None ignores signals.
      guard: guard of the work directory, if this process has locked it. None makes a guard.
      hooks: hooks to call during training and to close at its end.

    Raises:
      SystemExit: 128 + the signal's number, after a signal, when the run has saved its state.
      UserError: if the checkpoint belongs to a different model or tokenizer, all checkpoints are damaged, the
        data cannot be used, a tracker is not installed, a step needs more memory than a device has, a step is
        not finite, or the run folder was deleted, moved or replaced.
    """
    began = time.monotonic()
    signals = signals or SignalHandler()
    with contextlib.ExitStack() as stack:
        if jax.process_index() == 0:  # the first of several hosts writes
            trackers = [TrackerHook(name, workdir, task.config) for name in config.trackers]
            # The samples are written before trackers look for the pictures.
            hooks = [MetricsWriter(workdir), SamplesWriter(workdir), *trackers, *hooks]
        called = stack.enter_context(Hooks(hooks))
        setup = Setup(task, config)
        guard = guard or stack.enter_context(contextlib.closing(DirectoryGuard(workdir)))
        scores = Scores(workdir, find_best(task, config))
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
        check_contract(data, Data)
        check_same_data(workdir, data.identity(), step)
        example = data.example()
        state, (train_step, compiled) = setup.prepare(example, checkpoints, newest, initial_variables)
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
        if jax.process_index() == 0:
            save(task.config, config_path(workdir))
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
