"""Trains a model from a config: tfm train --config=configs/quickstart.py --workdir=runs/quickstart

Any field of the config can be set on the command line: --config.training.steps=1000. Started again on the
same work directory, a run resumes from its newest intact checkpoint; fields on which its numbers depend may
then change only with --allow_change. --warm_start=RUN begins a new run with the weights of another;
--reset_schedule begins a new schedule with the weights of the run. On several hosts, each starts the same
command, with a work directory that all can see, and --distributed, or --coordinator, --processes and
--process_id.
"""

import contextlib
import logging
import os
import re
import tempfile
from collections.abc import Sequence
from typing import Any

import jax
from absl import flags
from jax.experimental import multihost_utils

from tfm import tasks
from tfm.commands import cli, progress_bar
from tfm.errors import UserError
from tfm.io.lock import lock_workdir
from tfm.io.signals import SignalHandler, handle_signals
from tfm.memory import limit_malloc_arenas
from tfm.training.dry_run import describe_run
from tfm.training.hooks import Hook
from tfm.training.loop import train
from tfm.training.partitioning import make_partitioner
from tfm.training.profiling import Profiler, parse_range
from tfm.training.topology import describe_topology, find_devices
from tfm.training.trackers import find_tracker
from tfm.workdir import initialization

log = logging.getLogger("tfm.train")


def define_flags(values: flags.FlagValues, argv: Sequence[str]) -> None:
    """The flags of the command, in `values`."""
    cli.define_new_run(values, argv)
    flags.DEFINE_bool(
        "dry_run", False, "Tell what the run will take, and stop before its first step.", values
    )
    text = "With --dry_run, tell it of these TPUs, such as v5e:4x4, for which the step is compiled here."
    flags.DEFINE_string("topology", "", text, values)
    text = "FIRST:LAST, steps to profile: writes a trace and a summary into the folder profile of the run."
    flags.DEFINE_string("profile", "", text, values)
    flags.DEFINE_string("warm_start", "", "Begin a new run with the weights of this run or export.", values)
    text = "Begin a new schedule with the newest weights of the run, from step 0."
    flags.DEFINE_bool("reset_schedule", False, text, values)
    text = "Field, such as training.seed, that may change although the numbers of the run depend on it."
    flags.DEFINE_multi_string("allow_change", [], text, values)
    text = "Join the other processes as SLURM, Kubernetes or the TPU VM tell of them."
    flags.DEFINE_bool("distributed", False, text, values)
    flags.DEFINE_string("coordinator", "", "Or by hand: HOST:PORT of the first process ...", values)
    flags.DEFINE_integer("processes", 1, "... how many there are ...", 1, flag_values=values)
    flags.DEFINE_integer("process_id", 0, "... and which one this is, from 0.", 0, flag_values=values)


def main(argv: Sequence[str] | None = None) -> None:
    """Trains; see `tfm.commands.cli.parse` for `argv` and what is raised."""
    arguments, _ = cli.parse(__name__, argv, define_flags)
    limit_malloc_arenas()
    chosen = cli.read_config(arguments)
    check_workdir(arguments.workdir)
    join_hosts(arguments)
    chosen = cli.read_pipe(chosen)
    cli.check_device()
    if not arguments.topology:  # before minutes of preparation
        make_partitioner(chosen.training)
    if arguments.profile:
        check_profile(arguments.profile, chosen.training.steps)
    for name in chosen.training.trackers:
        find_tracker(name)  # is installed
    if arguments.topology and not arguments.dry_run:
        raise UserError("--topology is for --dry_run alone: a run takes the devices that are here.")
    if arguments.warm_start and arguments.reset_schedule:
        raise UserError(
            "--warm_start begins a new run and --reset_schedule a new schedule in this one: choose one."
        )
    if arguments.warm_start:  # before the folder of the run is created
        initialization.check_warm_start(arguments.warm_start, chosen, arguments.workdir)
    if arguments.dry_run:
        dry_run(chosen, arguments)
        return
    with handle_signals() as signals:
        begin(chosen, arguments, signals)


def begin(chosen: Any, arguments: flags.FlagValues, signals: SignalHandler) -> None:
    """Trains in the work directory, as the only run that does; its first process holds the lock."""
    workdir, source = arguments.workdir, arguments.warm_start
    cli.enable_compilation_cache(workdir)
    make = tasks.find(chosen.task).create
    guard = None
    with contextlib.ExitStack() as stack:
        if jax.process_index() == 0:  # the first of several hosts makes what the others find
            os.makedirs(workdir, exist_ok=True)
            guard = stack.enter_context(lock_workdir(workdir))
            cli.remove_damaged_programs(workdir)
            initialization.save_config(
                chosen, workdir, allow_change=arguments.allow_change, resets=arguments.reset_schedule
            )
            if source:
                initialization.prepare_warm_start(source, chosen, workdir)
            task = make(chosen, workdir)
            if arguments.reset_schedule:
                initialization.reset(task, workdir)
        multihost_utils.sync_global_devices("work directory")
        if jax.process_index() > 0:
            task = make(chosen, workdir, new=False)
        initial_variables = initialization.find_initial_variables(task, workdir, source)
        train(
            task,
            chosen.training,
            workdir,
            initial_variables=initial_variables,
            signals=signals,
            guard=guard,
            hooks=make_hooks(task, chosen.training.steps, arguments),
        )


def make_hooks(task: Any, steps: int, arguments: flags.FlagValues) -> list[Hook]:
    """On the first host a profiler, if --profile is given, and a progress bar, if a terminal shows it."""
    hooks: list[Hook] = []
    if jax.process_index() > 0:
        return hooks
    if arguments.profile:
        hooks.append(Profiler(*parse_range(arguments.profile), arguments.workdir))
    if progress_bar.is_wanted():
        hooks.append(progress_bar.ProgressBar(steps, task.unit))
    return hooks


def dry_run(chosen: Any, arguments: flags.FlagValues) -> None:
    """Prints what the run would take, on the TPUs of --topology if any; the work directory stays as it is."""
    workdir, topology = arguments.workdir, arguments.topology
    if topology:
        find_devices(topology)  # before the data are read
    initialization.check_config(
        chosen, workdir, allow_change=arguments.allow_change, resets=arguments.reset_schedule
    )
    with tempfile.TemporaryDirectory() as elsewhere:
        if arguments.warm_start:
            initialization.prepare_warm_start(arguments.warm_start, chosen, elsewhere)
        task = tasks.find(chosen.task).create(chosen, elsewhere)
        if topology:
            lines = describe_topology(task, chosen.training, topology)
        else:
            lines = describe_run(task, chosen.training, workdir)
        print("\n".join(lines))


def check_profile(text: str, steps: int) -> None:
    """Checks that a run of so many steps reaches those that --profile names.

    Raises:
      UserError: it does not, or the text is no range.
    """
    _, last = parse_range(text)
    if last > steps:
        raise UserError(f"--profile={text}: the run ends after step {steps:,}: name steps up to it.")


def check_workdir(workdir: str) -> None:
    """Checks that the work directory is no URL, of which a folder called "gs:" would be made here.

    Raises:
      UserError: it is one.
    """
    if re.match(r"[a-z0-9]+://", workdir):
        raise UserError(
            f"--workdir must be a folder of the file system, got {workdir!r}: give one that all hosts mount, "
            "such as NFS; a run locks files and renames folders, which a bucket has not."
        )


def join_hosts(arguments: flags.FlagValues) -> None:
    """Joins the processes of a run on several hosts, if the flags say that there are any.

    Raises:
      UserError: the flags do not fit, or the environment does not tell of other processes.
    """
    if arguments.coordinator and not re.fullmatch(r".+:\d{1,5}", arguments.coordinator):
        raise UserError(f"--coordinator must be HOST:PORT, got {arguments.coordinator!r}.")
    if arguments.process_id >= arguments.processes:
        raise UserError(
            f"--process_id must be below --processes, got {arguments.process_id} of {arguments.processes}."
        )
    if arguments.distributed:  # SLURM, Kubernetes and Open MPI tell JAX all it needs
        try:
            jax.distributed.initialize()
        except ValueError as error:
            raise UserError(
                f"--distributed: JAX does not find the other processes ({error}): start the command by "
                "SLURM, Kubernetes or Open MPI, or give --coordinator, --processes and --process_id."
            ) from None
    elif arguments.coordinator:
        jax.distributed.initialize(arguments.coordinator, arguments.processes, arguments.process_id)
