"""Trains a run in its folder. A run resumes from its newest intact checkpoint.

`train_in_workdir` opens the folder and makes the task. `train` opens the data, prepares the state and the
compiled step, and runs the loop.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import jax
from jax.experimental import multihost_utils

from tfm import tasks
from tfm.config import save
from tfm.io import local_copies
from tfm.io.lock import DirectoryGuard, lock_workdir
from tfm.io.signals import Preemption, SignalHandler
from tfm.training.config import TrainingConfig
from tfm.training.hooks import Hook, Hooks
from tfm.training.loop import Loop
from tfm.training.run_log import MetricsWriter
from tfm.training.samples import SamplesWriter
from tfm.training.scores import Scores, check_score_names, find_best
from tfm.training.setup import Setup, open_checkpoints
from tfm.training.task import RunConfig, Task, Variables
from tfm.training.trackers.hook import TrackerHook
from tfm.workdir import resume, warm_start
from tfm.workdir.compiled_programs import enable_compilation_cache, remove_damaged_programs
from tfm.workdir.runs import config_path
from tfm.workdir.starts import open_same_data, record_start

log = logging.getLogger(__name__)


def train_in_workdir(
    config: RunConfig,
    workdir: str,
    *,
    allow_change: Sequence[str] = (),
    source: str = "",
    entries: Sequence[str] = (),
    from_step: int | None = None,
    signals: SignalHandler | None = None,
    make_hooks: Callable[[Task], Iterable[Hook]] = lambda task: (),
) -> None:
    """Trains the run of a config in its folder, and creates the folder if it does not exist.

    Args:
      config: config of the run, the dataclass of its task.
      workdir: folder of the run.
      allow_change: see `tfm.workdir.resume.check_config`.
      source, entries: run or export that a new run begins with, and the map of its parameters, see
        `tfm.workdir.warm_start`.
      from_step: checkpoint to resume from. None resumes from the newest.
      signals: see `train`.
      make_hooks: returns the hooks of a task, which are called in addition to those that `train` calls.

    Raises:
      SystemExit, UserError: see `train`. UserError also if the folder is in use or belongs to a run with
        another config, or the task cannot be created.
    """
    enable_compilation_cache(workdir)
    with open_workdir(workdir) as guard:
        if guard:  # the first host prepares the folder for the other hosts
            remove_damaged_programs(workdir)
            resume.save_config(config, workdir, allow_change=allow_change)
            if source:
                warm_start.prepare_warm_start(source, config, workdir, entries)
            warm_start.copy_frozen_models(config, workdir)
            task = tasks.find(config.task).create(config, workdir)
            if from_step is not None:
                resume.resume_from(from_step, task, workdir)
            local_copies.share(workdir)
        multihost_utils.sync_global_devices("work directory")
        if not guard:
            local_copies.refresh(workdir)
            task = tasks.find(config.task).create(config, workdir, new=False)
        initial = warm_start.find_initial_variables(task, source, entries)
        hooks = make_hooks(task)
        train(
            task,
            config.training,
            workdir,
            initial_variables=initial,
            signals=signals,
            guard=guard,
            hooks=hooks,
        )


@contextlib.contextmanager
def open_workdir(workdir: str) -> Iterator[DirectoryGuard | None]:
    """Creates and locks the folder of a run on the first host, so that no second run can use it.

    Yields:
      The guard of the folder. None on the other hosts.
    """
    if jax.process_index() > 0:
        yield None
        return
    os.makedirs(workdir, exist_ok=True)
    with lock_workdir(workdir) as guard:
        yield guard


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

    Writes checkpoints, metrics and samples into the folder, a line about the start, and the config. If the
    run is complete, logs why there is nothing to do, and returns.

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
        data cannot be used, no evaluation has the score of training.best_by, a tracker is not installed, a
        step needs more memory than a device has, a step is not finite, or the run folder was deleted, moved
        or replaced.
    """
    began = time.monotonic()
    signals = signals or SignalHandler()
    with contextlib.ExitStack() as stack:
        called = stack.enter_context(Hooks([*_make_writers(task, config, workdir), *hooks]))
        setup = Setup(task, config)
        guard = guard or stack.enter_context(contextlib.closing(DirectoryGuard(workdir)))
        check_score_names(task, config)
        scores = Scores(workdir, find_best(task, config), task.validation_loss)
        checkpoints = open_checkpoints(task, config, workdir, guard, setup.assets(), scores)
        stack.enter_context(contextlib.closing(checkpoints))
        newest = checkpoints.recover()
        step = newest or 0
        scores.drop_after(step)
        if completed := scores.describe_completion(step, config):
            log.info("Nothing to do: %s", completed)
            return
        data = open_same_data(task, workdir, step)
        state, (train_step, compiled) = setup.prepare(data.example(), checkpoints, newest, initial_variables)
        guard.check()  # preparing may have taken long, and what follows makes files and folders
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
        loop = Loop(setup, data, checkpoints, scores, guard, called, Preemption(signals), state, step, sums)
        del state  # the first step donates it
        with signals.deferred():
            loop.run(train_step, began)
            checkpoints.wait()
        if loop.signal and not scores.describe_completion(loop.step, config):
            log.info("Saved step %s: the same command resumes from there", f"{loop.step:,}")
            raise SystemExit(128 + loop.signal)


def _make_writers(task: Task, config: TrainingConfig, workdir: str) -> list[Hook]:
    """Returns the hooks of the first host that write metrics and samples and call the trackers."""
    if jax.process_index() > 0:
        return []
    trackers = [TrackerHook(name, workdir, task.config) for name in config.trackers]
    # The samples are written before trackers look for the pictures.
    return [MetricsWriter(workdir), SamplesWriter(workdir), *trackers]
