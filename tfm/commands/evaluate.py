"""Evaluates a run: tfm evaluate --workdir=runs/quickstart

Translates a split by beam search, writes hypotheses and scores into the work directory, then prints the
scores with their signatures, the perplexity of the references among them. Any field of the run's config can
be overridden: --config.decoding.beam_size=5. The files are called after the split; --name keeps further
evaluations of it apart, and `tfm compare` finds them. Where the work directory cannot be written,
--output_dir names another folder; the config goes there too, so that `tfm compare` reads it like the run.
"""

from tfm.commands import terminal

if __name__ == "__main__":
    terminal.end_at_once()  # the imports take seconds

import dataclasses
import itertools
import json
import os

from absl import flags

from tfm import config
from tfm.commands import cli
from tfm.data.sources import fingerprint_of
from tfm.errors import UserError
from tfm.fields import changes
from tfm.runtime.files import only_writer, whole_file
from tfm.tasks.translation import report
from tfm.training.setup import CHECKPOINT_FOLDER
from tfm.workdir import runs
from tfm.workdir.bundle import is_bundle


def main():
    arguments = flags.FLAGS
    chosen = cli.read_config()
    folder = arguments.output_dir or arguments.workdir
    stem = runs.evaluation_stem(folder, arguments.split, chosen.data.target_language, arguments.name)
    if arguments.output_dir:
        check_output_dir(folder, arguments.workdir, chosen)
    with only_writer(f"{stem}.hypotheses", "--output_dir"):
        run = cli.load_run()
        result = report.evaluate(run.task, run.params, arguments.split)
        write_results(result, run, arguments, stem)


def check_output_dir(folder, workdir, chosen):
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


def write_results(result, run, arguments, stem):
    """Writes the scores after each measurement, and prints them at the end, also where one fails.

    Args:
      result: a `tfm.tasks.translation.report.Evaluation`.
      run: that was evaluated.
      arguments: the flags.
      stem: what the names of the files begin with.

    Raises:
      UserError: an I/O error.
      KeyboardInterrupt: as it came; its text says what is written.
    """
    scores, before, done = result.scores, [], ""
    try:
        write_hypotheses(result, run, stem)
        for scores, before in measurements(result, run, arguments):
            write_scores(result, scores, before, run, arguments.split, stem)
            done = f"the scores above stand in {stem}.scores.json; the same command measures the rest too"
    except KeyboardInterrupt:
        raise KeyboardInterrupt(done) from None
    finally:
        show(result, scores, before, run, arguments)
    print(f"wrote {stem}.hypotheses and {stem}.scores.json")


def measurements(result, run, arguments):
    """Yields, after each measurement, all scores so far and those of the last averaged checkpoint alone."""
    scores, before = result.scores, []
    yield scores, before
    if run.task.config.data.kind == "builtin" and arguments.split == "test":
        scores = scores + report.challenges(run.task, run.params, result)
        yield scores, before
    if arguments.average > 1:
        before = last_alone(run, arguments)
        yield scores, before


def last_alone(run, arguments):
    """Scores of the last of the averaged checkpoints by itself, to see what averaging brings."""
    last = runs.load(arguments.workdir, checkpoint=run.steps[-1], chosen=run.task.config)
    return report.evaluate(last.task, last.params, arguments.split).scores


def show(result, scores, before, run, arguments):
    """Some translations, then the scores; `before` are those before averaging."""
    triples = zip(result.sources, result.references, result.hypotheses, strict=True)
    for source, reference, hypothesis in itertools.islice(triples, arguments.samples):
        print(f"source      {source}\nreference   {reference}\nhypothesis  {hypothesis}\n")
    kind = "ensemble" if isinstance(run.params, tuple) else "mean"
    which = f"step {run.steps[0]:,}" if len(run.steps) == 1 else f"{kind} of steps {run.steps}"
    decoding = run.task.config.decoding
    print(
        f"{arguments.split}: {len(result.hypotheses):,} sentences, {which}, beam {decoding.beam_size}, "
        f"length penalty {decoding.length_penalty}, "
        f"{result.sentences_per_second:.1f} sentences/s with compilation"
    )
    for score in scores:
        print(score)
    for score in before:
        print(f"step {run.steps[-1]:,} alone: {score}")


def write_hypotheses(result, run, stem):
    """The hypotheses, a line each; beside them the run's config where there is none."""
    with whole_file(f"{stem}.hypotheses", "w") as file:
        file.writelines(text + "\n" for text in result.hypotheses)
    path = runs.config_path(os.path.dirname(stem))
    if not os.path.exists(path):
        config.save(run.task.config, path)


def write_scores(result, scores, before, run, split, stem):
    """All scores and how they were made, as JSON."""
    report = {
        "split": os.path.basename(split),
        "texts": fingerprint_of(result.sources, result.references),
        "checkpoints": run.steps,
        "decoding": dataclasses.asdict(run.task.config.decoding),
        "sentences": len(result.hypotheses),
        "sentences_per_second": result.sentences_per_second,
        "scores": [score._asdict() for score in scores],
        "scores_of_the_last_checkpoint_alone": [score._asdict() for score in before],
    }
    with whole_file(f"{stem}.scores.json", "w") as file:
        json.dump(report, file, indent=2)


if __name__ == "__main__":
    cli.define_finished_run()
    flags.DEFINE_string("split", "test", "train, validation, test, or any split or file stem of the data.")
    flags.DEFINE_string("name", "", "Name of the files to write; the last name of the split if not given.")
    flags.DEFINE_string("output_dir", "", "Folder to write into; the work directory when not given.")
    flags.DEFINE_integer("samples", 4, "Translations to print.", lower_bound=0)
    cli.run(main)
