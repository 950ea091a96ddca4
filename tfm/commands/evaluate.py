"""Evaluates a run: tfm evaluate --workdir=runs/quickstart

Translates a split by beam search, writes hypotheses and scores into the work directory, then prints the
scores with their signatures, the perplexity of the references among them. Any field of the run's config can
be overridden: --config.decoding.beam_size=5. The files are called after the split; --name keeps further
evaluations of it apart, and `tfm compare` finds them. Where the work directory cannot be written,
--output_dir names another folder; the config goes there too, so that `tfm compare` reads it like the run.
"""

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags

from tfm import config
from tfm.commands import cli
from tfm.data.sources.text_files import one_line
from tfm.errors import UserError
from tfm.fields import changes
from tfm.io.files import atomic_file, only_writer
from tfm.training.setup import CHECKPOINT_FOLDER
from tfm.training.task import Report
from tfm.workdir import runs
from tfm.workdir.bundle import is_bundle


def define_flags(values: flags.FlagValues, argv: Sequence[str]) -> None:
    """The flags of the command, in `values`."""
    cli.define_finished_run(values, argv)
    text = "train, validation, test, or any split or file stem of the data."
    flags.DEFINE_string("split", "test", text, values)
    text = "Name of the files to write; the last name of the split if not given."
    flags.DEFINE_string("name", "", text, values)
    text = "Folder to write into; the work directory when not given."
    flags.DEFINE_string("output_dir", "", text, values)
    flags.DEFINE_integer("samples", 4, "Examples to print.", 0, flag_values=values)


def main(argv: Sequence[str] | None = None) -> None:
    """Evaluates; see `tfm.commands.cli.parse` for `argv` and what is raised."""
    arguments, _ = cli.parse(__name__, argv, define_flags)
    chosen = cli.read_config(arguments)
    folder = arguments.output_dir or arguments.workdir
    stem = runs.evaluation_stem(folder, arguments.split, chosen.output_suffix, arguments.name)
    if arguments.output_dir:
        check_output_dir(folder, arguments.workdir, chosen)
    with only_writer(f"{stem}.hypotheses", "--output_dir"):
        run = cli.load_run(arguments)
        write_results(run, arguments, stem)


def check_output_dir(folder: str, workdir: str, chosen: Any) -> None:
    """Raises a UserError for a folder that holds another run, or evaluations on other data."""
    if os.path.realpath(folder) == os.path.realpath(workdir):
        return
    if is_bundle(folder) or os.path.isdir(os.path.join(folder, CHECKPOINT_FOLDER)):
        raise UserError(f"--output_dir={folder} is the folder of another run: choose a folder without one.")
    if not os.path.exists(runs.config_path(folder)):
        return
    changed = [
        change for change in changes(runs.read_config(folder), chosen) if change.path.startswith("data.")
    ]
    if changed:
        several = "; ".join(
            f"{one.path} is {one.old.value!r} there, here {one.new.value!r}" for one in changed
        )
        raise UserError(f"--output_dir={folder} holds evaluations on other data ({several}): choose another.")


def write_results(run: runs.Run, arguments: flags.FlagValues, stem: str) -> None:
    """Writes the report after each measurement, and prints it at the end, also where one fails.

    Args:
      run: that is evaluated.
      arguments: the flags.
      stem: what the names of the files begin with.

    Raises:
      UserError: an I/O error.
      KeyboardInterrupt: as it came; its text says what is written.
    """
    report, done = None, ""
    before: list[Any] = []
    try:
        for report, before in run_measurements(run, arguments):
            if not done:
                write_outputs(report, run, stem)
            write_scores(report, before, run, arguments.split, stem)
            done = f"the scores above are in {stem}.scores.json; the same command measures the rest too"
    except KeyboardInterrupt:
        raise KeyboardInterrupt(done) from None
    finally:
        if report is not None:
            show(report, before, run, arguments)
    print(f"wrote {stem}.hypotheses and {stem}.scores.json")


def run_measurements(run: runs.Run, arguments: flags.FlagValues) -> Iterator[tuple[Report, list[Any]]]:
    """Yields, after each measurement, the report so far and scores of the last averaged checkpoint alone."""
    for report in run.task.report(run.variables, arguments.split):
        yield report, []
    if arguments.average > 1:
        yield report, score_last_checkpoint(run, arguments)


def score_last_checkpoint(run: runs.Run, arguments: flags.FlagValues) -> list[Any]:
    """Scores of the last of the averaged checkpoints by itself, to see what averaging brings."""
    last = runs.load(arguments.workdir, checkpoint=run.steps[-1], chosen=run.task.config)
    return next(last.task.report(last.variables, arguments.split)).scores


def show(report: Report, before: Sequence[Any], run: runs.Run, arguments: flags.FlagValues) -> None:
    """Some examples, then the scores; `before` are those before averaging."""
    for example in report.examples[: arguments.samples]:
        print("".join(f"{name:<11} {text}\n" for name, text in example.items()))
    kind = "ensemble" if isinstance(run.variables, tuple) else "mean"
    which = f"step {run.steps[0]:,}" if len(run.steps) == 1 else f"{kind} of steps {run.steps}"
    print(
        f"{arguments.split}: {len(report.outputs):,} examples, {which}, "
        f"{report.rate:.1f} examples/s with compilation"
    )
    if report.settings:
        print("  ".join(f"{name}={value}" for name, value in report.settings.items()))
    for score in report.scores:
        print(score)
    for score in before:
        print(f"step {run.steps[-1]:,} alone: {score}")


def write_outputs(report: Report, run: runs.Run, stem: str) -> None:
    """The outputs, a line each; beside them the run's config where there is none."""
    with atomic_file(f"{stem}.hypotheses", "w") as file:
        file.writelines(one_line(text) + "\n" for text in report.outputs)
    path = runs.config_path(os.path.dirname(stem))
    if not os.path.exists(path):
        config.save(run.task.config, path)


def write_scores(report: Report, before: Sequence[Any], run: runs.Run, split: str, stem: str) -> None:
    """All scores and how they were made, as JSON."""
    content = {
        "split": os.path.basename(split),
        "texts": report.identity,
        "checkpoints": run.steps,
        "ensemble": isinstance(run.variables, tuple),
        "decoding": report.settings,
        "sentences": len(report.outputs),
        "sentences_per_second": report.rate,
        "scores": [score._asdict() for score in report.scores],
        "scores_of_the_last_checkpoint_alone": [score._asdict() for score in before],
    }
    with atomic_file(f"{stem}.scores.json", "w") as file:
        json.dump(content, file, indent=2)
