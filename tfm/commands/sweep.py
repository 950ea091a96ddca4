"""Trains and evaluates every variant of a config: tfm sweep configs/table3.py --workdir=runs/table3

The function get_variants() of the config file yields the variants, see `tfm.sweep`. `tfm train` trains each
variant with --seeds seeds, each run in the folder WORKDIR/VARIANT/seed_N, and `tfm evaluate` evaluates it.
After each run, the command writes the finished runs to WORKDIR/table.md. The same command resumes a sweep: it
skips finished runs and continues interrupted runs from their newest checkpoints. --config.field=value changes
a field of all variants. All runs of a folder must have the configs of one command, so that the table compares
like with like. Only --seeds, --only, --split and --checkpoint may change. A run that was trained again or
evaluated by hand is evaluated again.
"""

import contextlib
import dataclasses
import logging
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NoReturn

from tfm.commands.command import command
from tfm.commands.config_files import read_config_file, read_variants, split_variant
from tfm.commands.options import Sweep
from tfm.commands.overrides import override
from tfm.config import dotted_names, import_flags, to_config_dict
from tfm.errors import UserError
from tfm.io.lock import lock_workdir
from tfm.io.remote import is_url
from tfm.sweep.plan import PlannedRun, describe_plan, plan_folder
from tfm.sweep.processes import execute_runs
from tfm.sweep.results import (
    Requested,
    choose_scores,
    find_result,
    find_results,
    write_table,
)
from tfm.sweep.variants import SEED, Variant
from tfm.workdir import resume, working_copies
from tfm.workdir.compiled_programs import remove_damaged_programs

log = logging.getLogger(__name__)


@command
def main(options: Sweep) -> None:
    """Runs the sweep, see `sweep`.

    Raises:
      UserError: if --config names a variant, or if `sweep` raises it.
    """
    if split_variant(options.config_file)[1]:
        raise UserError("A sweep needs the file without a variant. Choose variants with --only.")
    with open_folder(options.workdir, is_view=options.dry_run) as folder:
        sweep(dataclasses.replace(options, workdir=folder))


@contextlib.contextmanager
def open_folder(workdir: str, *, is_view: bool) -> Iterator[str]:
    """Yields the folder of a sweep, or a working copy if it is a URL.

    The processes of the runs cannot fetch checkpoints, so the copy has the checkpoints of all runs. With
    `is_view`, the copy is only for the plan. Otherwise, it is uploaded during the sweep and at its end.

    Raises:
      UserError: if another process uses the folder, or the store fails for too long.
    """
    if not is_url(workdir):
        yield workdir
    elif is_view:
        with working_copies.open_to_view(workdir) as folder:
            yield folder
    else:
        with working_copies.open_to_train(workdir, everything=True) as (folder, _):
            yield folder


def sweep(options: Sweep) -> None:
    """Runs the sweep in a local folder. Creates and locks the folder. With --dry_run, only prints the plan.

    Raises:
      UserError: if a variant is invalid, --score names an unknown score, a run may not have its config,
        another process has locked the folder, or runs failed.
      KeyboardInterrupt, SystemExit: see `execute`.
    """
    folder, variants = options.workdir, read_variants(options.config_file)
    planned = plan_runs(variants, options)
    known = planned + plan_others(variants, planned, options)
    results = find_results(known, Requested(options.split, options.checkpoint), folder)
    choose_scores(variants, options.scores, results, planned[0].config)
    for run in planned:  # otherwise, every run would fail and the table would lose its rows
        resume.check_config(run.config, run.workdir)
    if options.dry_run:
        finished = {result.run.name for result in results}
        print("\n".join(describe_plan(planned, finished)))
        return
    os.makedirs(folder, exist_ok=True)
    with lock_workdir(folder), exit_on_signals():
        remove_damaged_programs(folder)
        execute(variants, planned, known, options)


@contextlib.contextmanager
def exit_on_signals() -> Iterator[None]:
    """Inside, SIGTERM and SIGUSR1 raise SystemExit, so that the sweep can stop the processes of its runs."""
    numbers = (signal.SIGTERM, signal.SIGUSR1)

    def stop(number: int, _: object) -> NoReturn:
        for each in numbers:  # a second signal must not interrupt the saving
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    old = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def plan_runs(variants: Sequence[Variant], options: Sweep) -> list[PlannedRun]:
    """Plans the runs of the variants that --only matches.

    All variants of a seed come before the next seed, so that an interrupted sweep has comparable runs.

    Raises:
      UserError: if `plan_each` raises, or if --only matches no variant.
    """
    patterns = options.only or ("*",)
    chosen = [each for each in variants if any(fnmatchcase(each.name, pattern) for pattern in patterns)]
    if not chosen:
        known = ", ".join(variant.name for variant in variants)
        raise UserError(f"Expected --only to match a variant ({known}), got {', '.join(options.only)}.")
    first = options.config.training.seed
    seeds = range(first, first + options.seeds)
    return plan_each([(variant, seed) for seed in seeds for variant in chosen], options)


def plan_others(
    variants: Sequence[Variant], planned: Sequence[PlannedRun], options: Sweep
) -> list[PlannedRun]:
    """Plans the other runs that have a folder in the sweep, because their results belong into the table.

    Raises:
      UserError: if `plan_each` raises.
    """
    names = {run.name for run in planned}
    pairs = [(variant, seed) for variant in variants for seed in _seeds_of(variant, options.workdir)]
    pairs.sort(key=lambda pair: pair[1])  # in the order of the seeds, like the plan
    return [run for run in plan_each(pairs, options) if run.name not in names]


def plan_each(pairs: Sequence[tuple[Variant, int]], options: Sweep) -> list[PlannedRun]:
    """Plans a run for each (variant, seed) pair.

    Raises:
      UserError: if fields of variants do not exist, are invalid, or are also set on the command line. The
        message lists all problems.
    """
    shared = [f"--config.{path}={value}" for path, value in options.overrides.items() if path != SEED]
    base, _ = read_config_file(options.config_file)
    configs, problems = {}, []
    for name, variant in {variant.name: variant for variant, _ in pairs}.items():
        if both := sorted(options.overrides.keys() & variant.overrides.keys()):
            problems.append(f"Variant {name} sets {' and '.join(both)}, and so does --config. Leave one out")
        try:
            configs[name] = override(base, [*variant.flags, *shared]).config
        except UserError as error:
            problems.append(f"Variant {name}: {str(error).rstrip('.')}")
    if problems:
        raise UserError(f"{'; '.join(problems)}.")
    first = [f"--config={options.config_file}", *import_flags(options.imports)]
    planned = []
    for variant, seed in pairs:
        config = configs[variant.name]
        config = dataclasses.replace(config, training=dataclasses.replace(config.training, seed=seed))
        arguments = [*first, *variant.flags, *shared, f"--config.{SEED}={seed}"]
        folder = plan_folder(options.workdir, variant, seed)
        planned.append(PlannedRun(variant, seed, config, folder, arguments))
    return planned


def execute(
    variants: Sequence[Variant],
    planned: Sequence[PlannedRun],
    known: Sequence[PlannedRun],
    options: Sweep,
) -> None:
    """Trains and evaluates the planned runs that are not finished.

    Writes the table of all `known` runs that are finished to table.md after each run, and prints it at the
    end.

    Raises:
      UserError: if runs failed. All other runs have finished by then.
      KeyboardInterrupt, SystemExit: if the user interrupts. The running processes have saved their
        checkpoints.
    """
    requested = Requested(options.split, options.checkpoint)
    evaluate = [f"--split={options.split}", f"--checkpoint={options.checkpoint}", "--samples=0"]
    names = [name for run in planned for name in dotted_names(to_config_dict(run.config))]
    evaluate += [f"--name={requested.name}"] if requested.name else []
    evaluate += import_flags([*options.imports, *names])  # a variant may name modules, too
    waiting = [run for run in planned if find_result(run, requested) is None]

    def report() -> str:
        results = find_results(known, requested, options.workdir)
        names = choose_scores(variants, options.scores, results, planned[0].config)
        title = f"Split {options.split}, {options.checkpoint} checkpoint."
        return write_table(options.workdir, variants, results, names, title)

    def report_early(_: PlannedRun) -> None:
        try:
            report()
        except UserError as error:  # other runs continue, and the last report raises it
            log.warning("%s", error)

    try:
        failures = execute_runs(waiting, evaluate, options.workdir, options.jobs, report_early)
    except (KeyboardInterrupt, SystemExit) as stop:
        done = len(find_results(known, requested, options.workdir))
        message = f"{done} runs are finished; the same command runs the rest"
        if isinstance(stop, SystemExit):
            log.warning("terminated: %s", message)
            raise
        raise KeyboardInterrupt(message) from None
    print(report(), end="")
    if failures:
        several = "; ".join(map(str, failures))
        raise UserError(
            f"{len(failures)} of {len(planned)} runs failed: {several}. The same command runs them again."
        )


def _seeds_of(variant: Variant, folder: str) -> list[int]:
    """Returns the seeds of the runs of a variant that have a folder, in ascending order."""
    path = os.path.dirname(plan_folder(folder, variant, 0))
    names = os.listdir(path) if os.path.isdir(path) else []
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(r"seed_(\d+)", name)))
