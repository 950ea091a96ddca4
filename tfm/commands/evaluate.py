"""Evaluates a run: tfm evaluate --workdir=runs/quickstart

Decodes a split, writes the hypotheses and the scores into the work directory, and prints the scores with
their signatures. For a translation, the scores include the perplexity of the references. Any field of the
run's config can be overridden, such as --config.decoding.beam_size=5. The files have the name of the split.
--name gives them another name, so that `tfm compare` can compare several evaluations of one run. If the work
directory cannot be written, --output_dir names another folder. The config is copied there, so that
`tfm compare` can read the folder like the run.
"""

import dataclasses
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

from tfm import config
from tfm.commands import terminal
from tfm.commands.command import command
from tfm.commands.hosts import join_hosts
from tfm.commands.options import Evaluate
from tfm.config import OnResume, changes
from tfm.data.sources.text_files import one_line
from tfm.errors import UserError
from tfm.io import local_copies
from tfm.io.files import atomic_file, last_part, only_writer
from tfm.training.setup import CHECKPOINT_FOLDER
from tfm.training.task import Report, RunConfig
from tfm.workdir import runs
from tfm.workdir.bundle import is_bundle
from tfm.workdir.evaluations import SUFFIX, EvaluationRecord
from tfm.workdir.starts import warn_of_changed_split

log = logging.getLogger(__name__)


@command
def main(options: Evaluate) -> None:
    """Evaluates a split. Writes the hypotheses and the scores, and prints the scores.

    Raises:
      UserError: if the run cannot be loaded, the split cannot be used, or the files cannot be written.
    """
    folder = options.output_dir or options.workdir
    stem = runs.evaluation_stem(folder, options.split, options.config.output_suffix, options.name)
    if options.output_dir:
        check_output_dir(folder, options.workdir, options.config)
    if join_hosts(options) > 0:
        run = options.load()
        *_, (report, before) = run_measurements(run, options)
        show(report, before, run, options)
        return
    with only_writer(f"{stem}.hypotheses", "--output_dir"):
        run = options.load()
        write_results(run, options, stem)


def check_output_dir(folder: str, workdir: str, new_config: RunConfig) -> None:
    """Raises a UserError if the folder contains a run other than `workdir`, or evaluations of another run.

    Evaluations on other data count as evaluations of another run.
    """
    if os.path.realpath(folder) == os.path.realpath(workdir):
        return
    if is_bundle(folder) or os.path.isdir(os.path.join(folder, CHECKPOINT_FOLDER)):
        raise UserError(f"--output_dir={folder} contains another run. Choose a folder without a run.")
    if not os.path.exists(runs.config_path(folder)):
        return
    there = runs.open_folder(folder).config
    changed = [
        change
        for change in changes(there, new_config)
        if change.path.startswith("data.") or change.rule != OnResume.FREE
    ]
    if changed:
        raise UserError(
            f"--output_dir={folder} contains evaluations of another run or on other data "
            f"({'; '.join(map(str, changed))}). Choose another folder."
        )


def write_results(run: runs.Run, options: Evaluate, stem: str) -> None:
    """Evaluates a run. Writes the scores after each measurement, and prints them at the end.

    The outputs are written after the first measurement, see `write_outputs`. If a measurement fails, the
    scores of the earlier measurements are written and printed. The text of a KeyboardInterrupt says what is
    written. `stem` is the path of the files to write, without their endings.
    """
    report, done, path = None, "", stem + SUFFIX
    before: list[Any] = []
    try:
        for report, before in run_measurements(run, options):
            if not done:
                write_outputs(report, run, stem)
            record = make_record(report, before, run, options)
            record.write(path)
            done = f"the scores above are in {path}; the same command also measures the rest"
        record._replace(complete=True).write(path)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(done) from None
    finally:
        if report is not None:
            show(report, before, run, options)
    print(local_copies.show(f"wrote {stem}.hypotheses and {path}"))


def run_measurements(run: runs.Run, options: Evaluate) -> Iterator[tuple[Report, list[Any]]]:
    """Yields (report so far, scores of the last checkpoint without averaging) after each measurement.

    The second part is empty until the final item of an `--average` run. Logs a warning if the split has
    changed since the last start of the run.

    Raises:
      UserError: if the split cannot be used.
    """
    log.info("Evaluating %s", options.split)
    warn_of_changed_split(run.task.config, options.workdir, options.split)
    for report in run.task.report(run.variables, options.split):
        yield report, []
    if options.average > 1:
        yield report, score_last_checkpoint(run, options)


def score_last_checkpoint(run: runs.Run, options: Evaluate) -> list[Any]:
    """Returns the scores of the last averaged checkpoint without averaging, to show the gain of averaging."""
    last = runs.load(options.workdir, checkpoint=run.steps[-1], config=run.task.config)
    return next(last.task.report(last.variables, options.split)).scores


def show(report: Report, before: Sequence[Any], run: runs.Run, options: Evaluate) -> None:
    """Prints some examples and the scores. `before` are the scores of only the last checkpoint."""
    for example in report.examples[: options.samples]:
        print(terminal.escape_controls("".join(f"{name:<11} {text}\n" for name, text in example.items())))
    kind = "ensemble" if isinstance(run.variables, tuple) else "mean"
    which = f"step {run.steps[0]:,}" if len(run.steps) == 1 else f"{kind} of steps {run.steps}"
    print(
        f"{options.split}: {len(report.outputs):,} examples, {which}, "
        f"{report.rate:.1f} examples/s including compilation"
    )
    if report.settings:
        print("  ".join(f"{name}={value}" for name, value in report.settings.items()))
    for score in report.scores:
        print(terminal.escape_controls(str(score)))
    for score in before:
        print(terminal.escape_controls(f"step {run.steps[-1]:,} without averaging: {score}"))


def write_outputs(report: Report, run: runs.Run, stem: str) -> None:
    """Writes the outputs, one on each line, and the run's config if the folder has no config."""
    with atomic_file(f"{stem}.hypotheses", "w") as file:
        file.writelines(one_line(text) + "\n" for text in report.outputs)
    path = runs.config_path(os.path.dirname(stem))
    if not os.path.exists(path):
        config.save(run.task.config, path)


def make_record(report: Report, before: Sequence[Any], run: runs.Run, options: Evaluate) -> EvaluationRecord:
    """Returns the record of an evaluation that continues, so `complete` is False.

    The arguments are as for `show`.
    """
    is_single = options.average == options.ensemble == 1
    checkpoint = "" if is_bundle(options.workdir) else options.checkpoint
    return EvaluationRecord(
        split=last_part(options.split),
        texts=report.identity,
        checkpoint=("best" if is_single else "last") if checkpoint is None else checkpoint,
        checkpoints=run.steps,
        ensemble=isinstance(run.variables, tuple),
        decoding=report.settings,
        data=dataclasses.asdict(run.task.config.data),
        sentences=len(report.outputs),
        sentences_per_second=report.rate,
        scores=report.scores,
        scores_of_the_last_checkpoint_alone=list(before),
        complete=False,
    )
