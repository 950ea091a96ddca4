"""Evaluates a run: tfm evaluate --workdir=runs/quickstart

Decodes a split, writes the hypotheses and the scores into the work directory, and prints the scores with
their signatures. For a translation, the scores include the perplexity of the references. Any field of the
run's config can be overridden, such as --config.decoding.beam_size=5. The files have the name of the split.
--name gives them another name, so that `tfm compare` can compare several evaluations of one run. If the work
directory cannot be written, --output_dir names another folder. The config is copied there, so that
`tfm compare` can read the folder like the run.
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
    """Defines the flags of the command in `values`."""
    cli.define_finished_run(values, argv)
    cli.define_hosts(values)
    text = "Split to score: train, validation, test, or any other split or file stem of the data."
    flags.DEFINE_string("split", "test", text, values)
    text = "Name of the files to write. The default is the name of the split, without its folder."
    flags.DEFINE_string("name", "", text, values)
    text = "Folder to write into. The default is the work directory."
    flags.DEFINE_string("output_dir", "", text, values)
    flags.DEFINE_integer("samples", 4, "Number of examples to print.", 0, flag_values=values)


def main(argv: Sequence[str] | None = None) -> None:
    """Evaluates. See `tfm.commands.cli.parse` for `argv` and for the errors."""
    arguments, _ = cli.parse(__name__, argv, define_flags)
    chosen = cli.read_config(arguments)
    folder = arguments.output_dir or arguments.workdir
    stem = runs.evaluation_stem(folder, arguments.split, chosen.output_suffix, arguments.name)
    if arguments.output_dir:
        check_output_dir(folder, arguments.workdir, chosen)
    if cli.join_hosts(arguments) > 0:
        run = cli.load_run(arguments)
        *_, (report, before) = run_measurements(run, arguments)
        show(report, before, run, arguments)
        return
    with only_writer(f"{stem}.hypotheses", "--output_dir"):
        run = cli.load_run(arguments)
        write_results(run, arguments, stem)


def check_output_dir(folder: str, workdir: str, chosen: Any) -> None:
    """Raises a UserError if the folder contains another run, or evaluations on other data.

    Args:
      folder: the folder to write into.
      workdir: the run that is evaluated. It is always allowed as `folder`.
      chosen: the config of the evaluation.
    """
    if os.path.realpath(folder) == os.path.realpath(workdir):
        return
    if is_bundle(folder) or os.path.isdir(os.path.join(folder, CHECKPOINT_FOLDER)):
        raise UserError(f"--output_dir={folder} contains another run. Choose a folder without a run.")
    if not os.path.exists(runs.config_path(folder)):
        return
    changed = [
        change for change in changes(runs.read_config(folder), chosen) if change.path.startswith("data.")
    ]
    if changed:
        several = "; ".join(
            f"{change.path} is {change.old.value!r} there, here {change.new.value!r}" for change in changed
        )
        raise UserError(
            f"--output_dir={folder} contains evaluations on other data ({several}). Choose another folder."
        )


def write_results(run: runs.Run, arguments: flags.FlagValues, stem: str) -> None:
    """Evaluates a run. Writes the scores after each measurement, and prints them at the end.

    If a measurement fails, the scores of the earlier measurements are written and printed.

    Args:
      run: the run to evaluate.
      arguments: the flags.
      stem: path of the files to write, without `.hypotheses` and `.scores.json`.

    Raises:
      UserError: if an I/O error occurs.
      KeyboardInterrupt: if the user interrupts. Its text says what is written.
    """
    report, done = None, ""
    before: list[Any] = []
    try:
        for report, before in run_measurements(run, arguments):
            if not done:
                write_outputs(report, run, stem)
            write_scores(report, before, run, arguments.split, stem)
            done = f"the scores above are in {stem}.scores.json; the same command also measures the rest"
    except KeyboardInterrupt:
        raise KeyboardInterrupt(done) from None
    finally:
        if report is not None:
            show(report, before, run, arguments)
    print(f"wrote {stem}.hypotheses and {stem}.scores.json")


def run_measurements(run: runs.Run, arguments: flags.FlagValues) -> Iterator[tuple[Report, list[Any]]]:
    """Yields (report so far, scores of the last checkpoint without averaging) after each measurement.

    The second part is empty until the final item of an `--average` run.
    """
    for report in run.task.report(run.variables, arguments.split):
        yield report, []
    if arguments.average > 1:
        yield report, score_last_checkpoint(run, arguments)


def score_last_checkpoint(run: runs.Run, arguments: flags.FlagValues) -> list[Any]:
    """Returns the scores of the last averaged checkpoint without averaging, to show the gain of averaging."""
    last = runs.load(arguments.workdir, checkpoint=run.steps[-1], chosen=run.task.config)
    return next(last.task.report(last.variables, arguments.split)).scores


def show(report: Report, before: Sequence[Any], run: runs.Run, arguments: flags.FlagValues) -> None:
    """Prints some examples and the scores.

    Args:
      report: outputs and scores of the evaluation.
      before: scores of the last checkpoint without averaging. Empty if nothing is averaged.
      run: the run that was evaluated.
      arguments: the flags.
    """
    for example in report.examples[: arguments.samples]:
        print("".join(f"{name:<11} {text}\n" for name, text in example.items()))
    kind = "ensemble" if isinstance(run.variables, tuple) else "mean"
    which = f"step {run.steps[0]:,}" if len(run.steps) == 1 else f"{kind} of steps {run.steps}"
    print(
        f"{arguments.split}: {len(report.outputs):,} examples, {which}, "
        f"{report.rate:.1f} examples/s including compilation"
    )
    if report.settings:
        print("  ".join(f"{name}={value}" for name, value in report.settings.items()))
    for score in report.scores:
        print(score)
    for score in before:
        print(f"step {run.steps[-1]:,} without averaging: {score}")


def write_outputs(report: Report, run: runs.Run, stem: str) -> None:
    """Writes the outputs, one on each line, and the run's config if the folder has no config."""
    with atomic_file(f"{stem}.hypotheses", "w") as file:
        file.writelines(one_line(text) + "\n" for text in report.outputs)
    path = runs.config_path(os.path.dirname(stem))
    if not os.path.exists(path):
        config.save(run.task.config, path)


def write_scores(report: Report, before: Sequence[Any], run: runs.Run, split: str, stem: str) -> None:
    """Writes all scores with the split, checkpoints and settings of the evaluation as JSON.

    Args:
      report: outputs and scores of the evaluation.
      before: scores of the last checkpoint without averaging. Empty if nothing is averaged.
      run: the run that was evaluated.
      split: the split that was evaluated.
      stem: path of the file, without `.scores.json`.
    """
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
