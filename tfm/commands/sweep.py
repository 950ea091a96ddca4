"""Trains and evaluates every variant of a config: tfm sweep configs/table3.py --workdir=runs/table3

The config file has a function get_variants() that yields them, see `tfm.sweep`. Each is trained with
--seeds seeds in a folder of its own, WORKDIR/VARIANT/seed_N, by `tfm train`, and evaluated by `tfm evaluate`;
then WORKDIR/ledger.jsonl gets a line, and WORKDIR/table.md is written. The same command resumes: it omits
finished runs, and a run that was interrupted resumes from its newest checkpoint. --config.field=value
changes a field of all variants. All runs of a work directory have the configs and the evaluation of one
command, but for --seeds and --only, so that the table compares what can be compared.
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
    """The flags of the command, in `values`."""
    cli.define_new_run(values, argv)
    text = "Seeds of each variant: training.seed of the config, and those after it."
    flags.DEFINE_integer("seeds", 3, text, 1, flag_values=values)
    flags.DEFINE_multi_string("only", [], "Shell pattern of the variants to run, such as 'C-*'.", values)
    text = "Split to score; that of the paper's Table 3 is validation."
    flags.DEFINE_string("split", "validation", text, values)
    text = "last or best; the paper's Table 3 takes the last, without averaging."
    flags.DEFINE_enum("checkpoint", "last", ["last", "best"], text, values)
    flags.DEFINE_integer("at_once", 1, "Runs at a time.", 1, flag_values=values)
    flags.DEFINE_multi_string("score", [], "Score of the table; those that variants publish if none.", values)
    flags.DEFINE_bool("dry_run", False, "Print the plan, and stop before the first run.", values)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the sweep; see `tfm.commands.cli.parse` for `argv` and what is raised."""
    argv = name_config(sys.argv[1:] if argv is None else argv)
    if config_flag.replace_variant(argv) != argv:
        raise UserError("A sweep is of a whole file: name it without a variant, and choose some by --only.")
    arguments, _ = cli.parse(__name__, argv, define_flags)
    path, workdir = config_flag.value_of("config", argv), arguments.workdir
    assert path is not None  # `parse` requires the flag
    variants = config_flag.read_variants(path)
    planned = plan_runs(variants, arguments, argv)
    rows = ledger.read_ledger(workdir)
    finished = {(row["variant"], row["seed"]) for row in rows}
    seeds = sorted({seed for _, seed in finished})  # in the order of a plan, whatever ended first
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
    """Inside, SIGTERM raises SystemExit, so that no process of a run outlives the sweep."""
    old = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)


def name_config(argv: Sequence[str]) -> list[str]:
    """The arguments with --config=FILE where they begin with FILE."""
    if argv and not argv[0].startswith("-"):
        return [f"--config={argv[0]}", *argv[1:]]
    return list(argv)


def plan_runs(
    variants: Sequence[Variant], arguments: flags.FlagValues, argv: Sequence[str]
) -> list[PlannedRun]:
    """The runs, seed after seed, so that a sweep that is cut short has all variants of the first.

    Raises:
      UserError: names all variants whose fields do not exist or do not fit, or there is none to run.
    """
    chosen = [each for each in variants if _is_wanted(each.name, arguments.only)]
    if not chosen:
        known = ", ".join(each.name for each in variants)
        raise UserError(f"--only={arguments.only} matches none of the variants {known}.")
    first = arguments.config.training.seed
    seeds = range(first, first + arguments.seeds)
    return plan_each([(variant, seed) for seed in seeds for variant in chosen], arguments, argv)


def plan_each(
    pairs: Iterable[tuple[Variant, int]], arguments: flags.FlagValues, argv: Sequence[str]
) -> list[PlannedRun]:
    """The runs of (variant, seed) pairs.

    Raises:
      UserError: names all variants whose fields do not exist or do not fit.
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
    """Trains and evaluates what is not finished, and writes ledger and table.

    Raises:
      UserError: runs failed; all others were finished.
      KeyboardInterrupt: the sweep was asked to end, and its runs have saved.
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
        raise KeyboardInterrupt(f"{done} runs are finished; the same command goes on from there") from None
    print(write_table(variants, arguments), end="")
    if failures:
        several = "; ".join(map(str, failures))
        raise UserError(
            f"{len(failures)} of {len(planned)} runs failed: {several}. The same command tries them again."
        )


def write_table(variants: Sequence[Variant], arguments: flags.FlagValues) -> str:
    """Writes the table of the runs that are finished, and returns it."""
    published = dict.fromkeys(name for variant in variants for name in variant.published)
    names = arguments.score or [name for name in published if name != PARAMETERS]
    rows = ledger.read_ledger(arguments.workdir)
    table = f"Split {arguments.split}, {arguments.checkpoint} checkpoint.\n\n"
    table += make_table(variants, rows, names or _first_score(rows))
    with atomic_file(os.path.join(arguments.workdir, TABLE_FILE), "w") as file:
        file.write(table)
    return table


def _import_flags(arguments):
    """--import for all that the command line names, or the config file, which the user trusts."""
    named = [*arguments["import"].value, *config.dotted_names(arguments.config)]
    return [f"--import={name.partition(':')[0]}" for name in dict.fromkeys(named)]


def _first_score(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [rows[0]["scores"][0]["name"]] if rows and rows[0]["scores"] else []


def _is_wanted(name, patterns):
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
