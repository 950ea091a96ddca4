"""Trains and evaluates every variant of a config: tfm sweep configs/table3.py --workdir=runs/table3

The function get_variants() of the config file yields the variants, see `tfm.sweep`. `tfm train` trains each
variant with --seeds seeds, each run in the folder WORKDIR/VARIANT/seed_N, and `tfm evaluate` evaluates it.
After each run, the command adds a line to WORKDIR/ledger.jsonl and writes WORKDIR/table.md. The same command
resumes a sweep: it skips finished runs and continues interrupted runs from their newest checkpoints.
--config.field=value changes a field of all variants. All runs of a work directory must have the configs and
the evaluation of one command, so that the table compares like with like. Only --seeds and --only may change.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from absl import flags

from tfm import config
from tfm.commands import cli, config_flag, train
from tfm.errors import UserError
from tfm.fields import raise_all
from tfm.io.files import atomic_file
from tfm.io.lock import lock_workdir
from tfm.sweep import ledger
from tfm.sweep.plan import PlannedRun, describe_plan, plan_folder
from tfm.sweep.processes import execute_runs
from tfm.sweep.table import PARAMETERS, make_table
from tfm.sweep.variants import Variant
from tfm.workdir import runs

TABLE_FILE = "table.md"


def define_flags(values: flags.FlagValues, argv: Sequence[str]) -> None:
    """Defines the flags of the command in `values`."""
    cli.define_new_run(values, argv)
    text = "Number of seeds of each variant. They count up from training.seed of the config."
    flags.DEFINE_integer("seeds", 3, text, 1, flag_values=values)
    text = "Shell pattern of the variants to run, such as 'C-*'. The default is all variants."
    flags.DEFINE_multi_string("only", [], text, values)
    text = "Split to score. The paper's Table 3 scores the validation split."
    flags.DEFINE_string("split", "validation", text, values)
    text = "Checkpoint to score, last or best. The paper's Table 3 scores the last, without averaging."
    flags.DEFINE_enum("checkpoint", "last", ["last", "best"], text, values)
    flags.DEFINE_integer("at_once", 1, "Number of runs that train at the same time.", 1, flag_values=values)
    text = "Score to show in the table. The default is the scores that the variants publish, or the first."
    flags.DEFINE_multi_string("score", [], text, values)
    flags.DEFINE_bool("dry_run", False, "Print the plan and exit before the first run.", values)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the sweep. See `tfm.commands.cli.parse` for `argv` and for the errors."""
    argv = name_config(sys.argv[1:] if argv is None else argv)
    if config_flag.replace_variant(argv) != argv:
        raise UserError("A sweep needs the file without a variant. Choose variants with --only.")
    arguments, _ = cli.parse(__name__, argv, define_flags)
    path, workdir = config_flag.value_of("config", argv), arguments.workdir
    assert path is not None  # `parse` requires the flag
    variants = config_flag.read_variants(path)
    planned = plan_runs(variants, arguments, argv)
    rows = ledger.read_ledger(workdir)
    finished = {(row["variant"], row["seed"]) for row in rows}
    seeds = sorted({seed for _, seed in finished})  # the order of the plan, not of the ends of the runs
    pairs = [(variant, seed) for seed in seeds for variant in variants if (variant.name, seed) in finished]
    ledger.check_ledger(
        rows, plan_each(pairs, arguments, argv), workdir, arguments.split, arguments.checkpoint
    )
    if arguments.dry_run:
        print("\n".join(describe_plan(planned, rows)))
        return
    os.makedirs(workdir, exist_ok=True)
    with lock_workdir(workdir), exit_on_sigterm():
        execute(variants, planned, arguments)


@contextlib.contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Inside, SIGTERM raises SystemExit, so that the sweep can stop the processes of its runs."""
    old = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)


def name_config(argv: Sequence[str]) -> list[str]:
    """Replaces FILE as the first argument by --config=FILE."""
    if argv and not argv[0].startswith("-"):
        return [f"--config={argv[0]}", *argv[1:]]
    return list(argv)


def plan_runs(
    variants: Sequence[Variant], arguments: flags.FlagValues, argv: Sequence[str]
) -> list[PlannedRun]:
    """Plans the runs of the chosen variants.

    All variants of a seed come before the next seed, so that an interrupted sweep has comparable runs.

    Raises:
      UserError: if fields of variants do not exist or are invalid, or if --only matches no variant. The
        message lists all problems.
    """
    chosen = [each for each in variants if _is_wanted(each.name, arguments.only)]
    if not chosen:
        known = ", ".join(each.name for each in variants)
        raise UserError(f"Expected --only to match a variant ({known}), got {arguments.only}.")
    first = arguments.config.training.seed
    seeds = range(first, first + arguments.seeds)
    return plan_each([(variant, seed) for seed in seeds for variant in chosen], arguments, argv)


def plan_each(
    pairs: Iterable[tuple[Variant, int]], arguments: flags.FlagValues, argv: Sequence[str]
) -> list[PlannedRun]:
    """Plans a run for each (variant, seed) pair.

    Raises:
      UserError: if fields of variants do not exist or are invalid. The message lists all problems.
    """
    shared = [f"--config={config_flag.value_of('config', argv)}", *_import_flags(arguments)]
    given = [argument for argument in argv if argument.lstrip("-").startswith(("config.", "noconfig."))]
    planned, problems = [], []
    for variant, seed in pairs:
        fields = [*shared, *variant.flags, *given, f"--config.training.seed={seed}"]
        workdir = plan_folder(arguments.workdir, variant, seed)
        try:
            parsed, _ = cli.parse(train.__name__, [*fields, f"--workdir={workdir}"], train.define_flags)
            planned.append(PlannedRun(variant, seed, cli.read_config(parsed), workdir, fields))
        except UserError as error:
            problems.append(f"Variant {variant.name}: {error}")
    raise_all(list(dict.fromkeys(problems)))
    return planned


def execute(variants: Sequence[Variant], planned: Sequence[PlannedRun], arguments: flags.FlagValues) -> None:
    """Trains and evaluates the runs that are not finished, and writes the ledger and the table.

    Raises:
      UserError: if runs failed. All other runs have finished by then.
      KeyboardInterrupt: if the user interrupts. The running processes have saved their checkpoints.
    """
    workdir = arguments.workdir
    evaluate = [f"--split={arguments.split}", f"--checkpoint={arguments.checkpoint}", "--samples=0"]
    evaluate += _import_flags(arguments)
    finished = {(row["variant"], row["seed"]) for row in ledger.read_ledger(workdir)}
    left = [run for run in planned if (run.variant.name, run.seed) not in finished]

    def on_finished(run: PlannedRun) -> None:
        stem = runs.evaluation_stem(run.workdir, arguments.split, run.config.output_suffix)
        ledger.append_row(workdir, ledger.make_row(run, f"{stem}.scores.json", arguments.checkpoint))
        write_table(variants, arguments)

    try:
        failures = execute_runs(left, evaluate, workdir, arguments.at_once, on_finished)
    except KeyboardInterrupt:
        done = len(ledger.read_ledger(workdir))
        raise KeyboardInterrupt(f"{done} runs are finished; the same command runs the rest") from None
    print(write_table(variants, arguments), end="")
    if failures:
        several = "; ".join(map(str, failures))
        raise UserError(
            f"{len(failures)} of {len(planned)} runs failed: {several}. The same command runs them again."
        )


def write_table(variants: Sequence[Variant], arguments: flags.FlagValues) -> str:
    """Writes the table of the finished runs, and returns it."""
    published = dict.fromkeys(name for variant in variants for name in variant.published)
    names = arguments.score or [name for name in published if name != PARAMETERS]
    rows = ledger.read_ledger(arguments.workdir)
    table = f"Split {arguments.split}, {arguments.checkpoint} checkpoint.\n\n"
    table += make_table(variants, rows, names or _first_score(rows))
    with atomic_file(os.path.join(arguments.workdir, TABLE_FILE), "w") as file:
        file.write(table)
    return table


def _import_flags(arguments: flags.FlagValues) -> list[str]:
    """Returns --import for each module that the command line or the config names. The user trusts both."""
    named = [*(arguments["import"].value or ()), *config.dotted_names(arguments.config)]
    return [f"--import={name.partition(':')[0]}" for name in dict.fromkeys(named)]


def _first_score(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the name of the first score of the first row, or [] without rows."""
    return [rows[0]["scores"][0]["name"]] if rows and rows[0]["scores"] else []


def _is_wanted(name: str, patterns: Sequence[str]) -> bool:
    """Returns whether a name matches a pattern, or there are no patterns."""
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
