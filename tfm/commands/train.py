"""Trains a model from a config: tfm train --config=configs/quickstart.py --workdir=runs/quickstart

Any field of the config can be set on the command line, such as --config.training.steps=1000. The same command
on the same work directory resumes the run from its newest intact checkpoint. A resumed run may change fields
that affect its results only with --allow_change. --warm_start=RUN begins a new run with the parameters of
another run, and --warm_start_map chooses which of them. --from_step=N resumes from the checkpoint of step N.
The work directory may be a URL, such as gs://BUCKET/run. On several hosts, start the same command on each,
with a URL or a work directory that all hosts share, and either --distributed, or --coordinator, --processes
and --process_id.
"""

import contextlib
import dataclasses
import functools
import logging
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping

import jax

from tfm import tasks
from tfm.checkpoints.store import list_assets, list_steps
from tfm.commands import progress_bar
from tfm.commands.command import command
from tfm.commands.compilation import check_device
from tfm.commands.hosts import join_hosts
from tfm.commands.options import Train
from tfm.config import dotted_names, import_flags, walk_fields
from tfm.devices.memory import limit_malloc_arenas
from tfm.errors import UserError
from tfm.io.remote import TRAINING_PATIENCE, check_url, is_url
from tfm.io.signals import handle_signals
from tfm.training.dry_run import describe_run
from tfm.training.hooks import Hook
from tfm.training.partitioning import make_partitioner
from tfm.training.profiling import Profiler, parse_range
from tfm.training.setup import CHECKPOINT_FOLDER, has_checkpoint
from tfm.training.task import RunConfig, Task
from tfm.training.trackers import find_tracker
from tfm.workdir import resume, warm_start, working_copies
from tfm.workdir.starts import open_same_data
from tfm.workdir.train import train_in_workdir
from tfm.workdir.warm_start import copy_frozen_models

log = logging.getLogger(__name__)


@command
def main(options: Train) -> None:
    """Trains."""
    limit_malloc_arenas()
    join_hosts(options)
    with open_run(options) as (options, hooks):
        train(options, hooks)


@contextlib.contextmanager
def open_run(options: Train) -> Iterator[tuple[Train, list[Hook]]]:
    """Opens the working copy of a run whose folder is a URL.

    Yields:
      The options with the path of the working copy, and the hooks that end training if the store fails. For a
      local folder, the options as they are, and no hooks.

    Raises:
      UserError: if another process trains in the folder, or the store fails for too long.
    """
    if not is_url(options.workdir):
        yield options, []
    elif options.dry_run or jax.process_index() > 0:
        with working_copies.open_to_read(options.workdir, patience=TRAINING_PATIENCE) as workdir:
            yield dataclasses.replace(options, workdir=workdir), []
    else:
        with working_copies.open_to_train(options.workdir) as (workdir, check):
            yield dataclasses.replace(options, workdir=workdir), [UploadHook(check)]


class UploadHook(Hook):
    """A hook that ends training if an upload in the background has failed.

    Args:
      check: raises the error.
    """

    def __init__(self, check: Callable[[], None]):
        self._check = check

    def on_step(self, step: int, metrics: Mapping[str, tuple[float, float]]) -> None:
        """Raises the error of an upload."""
        self._check()


def train(options: Train, hooks: list[Hook]) -> None:
    """Checks the options, and trains in a local folder with additional hooks, or calls `dry_run`.

    Raises:
      SystemExit: see `tfm.workdir.train.train`.
      UserError: if options contradict each other or the run, there is no device, the package of a tracker is
        missing, or training raises it.
    """
    config = options.config
    for leaf in walk_fields(config):
        if is_url(leaf.value):
            check_url(leaf.value)
    check_device()
    make_partitioner(config.training)  # checked here, because the preparation takes minutes
    if options.profile:
        check_profile(options.profile, config.training.steps)
    for name in config.training.trackers:
        find_tracker(name)  # raises an error if its package is not installed
    if options.from_step is not None and options.dry_run:
        raise UserError("--from_step is not for --dry_run, because a dry run computes no step. Leave it out.")
    if options.from_step is not None and not list_steps(os.path.join(options.workdir, CHECKPOINT_FOLDER)):
        raise UserError(
            f"--from_step={options.from_step} needs a run with checkpoints, but {options.workdir} has none. "
            "Check --workdir, or leave --from_step out."
        )
    if options.warm_start_map and not options.warm_start:
        raise UserError("--warm_start_map chooses parameters of --warm_start. Give both.")
    if options.warm_start:  # checked before the folder of the run is created
        warm_start.check_warm_start(options.warm_start, config, options.workdir, options.warm_start_map)
        if options.warm_start_map:
            warm_start.check_map(options.warm_start, config, options.workdir, options.warm_start_map)
    if options.dry_run:
        dry_run(config, options)
        return
    with handle_signals() as signals:
        train_in_workdir(
            config,
            options.workdir,
            allow_change=options.allow_change,
            source=options.warm_start,
            entries=options.warm_start_map,
            from_step=options.from_step,
            signals=signals,
            make_hooks=lambda task: [*make_hooks(task, options), *hooks],
        )
    names = dotted_names(dataclasses.asdict(config))
    if names and jax.process_index() == 0:
        log.info(
            "The run uses code of your own. Other commands import it only with a flag: tfm evaluate %s",
            shlex.join([f"--workdir={options.workdir}", *import_flags(names)]),
        )


def make_hooks(task: Task, options: Train) -> list[Hook]:
    """Returns the hooks of the first host: a profiler for --profile, and a progress bar on a terminal.

    Returns [] on the other hosts.
    """
    hooks: list[Hook] = []
    if jax.process_index() > 0:
        return hooks
    if options.profile:
        hooks.append(Profiler(*parse_range(options.profile), options.workdir))
    if progress_bar.is_wanted():
        hooks.append(progress_bar.ProgressBar(options.config.training.steps, task.unit))
    return hooks


def dry_run(config: RunConfig, options: Train) -> None:
    """Prints memory, arithmetic and batches of the run. The work directory does not change.

    Raises:
      UserError: if the run may not have this config, or its data or its task cannot be opened.
    """
    workdir = options.workdir
    resume.check_config(config, workdir, allow_change=options.allow_change)
    with tempfile.TemporaryDirectory() as elsewhere:
        task = create_task(config, options, elsewhere)
        newest = max(list_steps(os.path.join(workdir, CHECKPOINT_FOLDER)), default=0)
        open_data = functools.partial(open_same_data, task, workdir, newest)
        print("\n".join(describe_run(task, config.training, workdir, open_data)))


def create_task(config: RunConfig, options: Train, elsewhere: str) -> Task:
    """Returns the task of a dry run, with the assets that the run has or would make. Writes into `elsewhere`.

    Args:
      config: config of the run.
      options: flags of the command.
      elsewhere: empty folder for the assets.

    Raises:
      UserError: if the task cannot be created, or another run that it begins with or uses cannot be used.
    """
    # Before the first checkpoint, a user may have copied a tokenizer there.
    made_from_fields = {leaf.info.asset for leaf in walk_fields(config)}
    saved = list_assets(os.path.join(options.workdir, CHECKPOINT_FOLDER))
    for path in (os.path.join(options.workdir, name) for name in made_from_fields.union(saved)):
        if os.path.isfile(path):
            shutil.copy(path, elsewhere)
    if options.warm_start and not has_checkpoint(options.workdir):
        warm_start.prepare_warm_start(options.warm_start, config, elsewhere, options.warm_start_map)
    copy_frozen_models(config, elsewhere)
    return tasks.find(config.task).create(config, elsewhere)


def check_profile(text: str, steps: int) -> None:
    """Raises a UserError if the value of --profile is no range of the steps of the run."""
    _, last = parse_range(text)
    if last > steps:
        raise UserError(f"Expected --profile to name steps up to {steps:,}, the last of the run, got {text}.")
