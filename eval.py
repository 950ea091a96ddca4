"""Evaluates a run: python eval.py --workdir=runs/quickstart

Translates a split by beam search, writes hypotheses and scores into the work directory and prints the scores
with their signatures, the perplexity of the references among them. Any field of the run's config can be
overridden: --config.decoding.beam_size=5. The files are called after the split; --name keeps further
evaluations of it apart, and `tfm.compare` finds them.
"""

import dataclasses
import itertools
import json
import os

from absl import flags

from tfm import cli, evaluation, runs
from tfm.files import whole_file


def main():
    arguments = flags.FLAGS
    data = cli.read_config().data
    stem = runs.evaluation_stem(arguments.workdir, arguments.split, data.target_language, arguments.name)
    run = cli.load_run()
    result = evaluation.evaluate(run.task, run.params, arguments.split)
    scores = result.scores
    if data.kind == "builtin" and arguments.split == "test":
        scores = scores + evaluation.challenges(run.task, run.params, result)
    before = last_alone(run, arguments) if arguments.average > 1 else []
    show(result, scores, before, run, arguments)
    write(result, scores, before, run, arguments.split, stem)
    print(f"wrote {stem}.hypotheses and {stem}.scores.json")


def last_alone(run, arguments):
    """Scores of the last of the averaged checkpoints by itself, to see what averaging brings."""
    last = runs.load(arguments.workdir, checkpoint=run.steps[-1], chosen=run.task.config)
    return evaluation.evaluate(last.task, last.params, arguments.split).scores


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


def write(result, scores, before, run, split, stem):
    """The hypotheses, a line each, and the scores as JSON."""
    with whole_file(f"{stem}.hypotheses", "w") as file:
        file.writelines(text + "\n" for text in result.hypotheses)
    report = {
        "split": os.path.basename(split),
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
    flags.DEFINE_integer("samples", 4, "Translations to print.", lower_bound=0)
    cli.run(main)
