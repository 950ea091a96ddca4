"""Compares two runs on one test set: tfm compare DIR_A DIR_B

Reads the hypotheses that tfm evaluate wrote into both work directories. Prints the scores of both runs, a
significance test of the difference, and the sentences whose scores differ most. To compare two evaluations of
one run, give the folder twice, and the --name of each evaluation: DIR DIR --name=best --name=averaged.
"""

import dataclasses
import itertools
import os
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from tfm.commands import terminal
from tfm.commands.command import command
from tfm.commands.options import Compare
from tfm.config import from_mapping
from tfm.data.sources.opening import fingerprint_texts, read_references, read_sides
from tfm.data.sources.text_files import TextFile
from tfm.errors import UserError
from tfm.evaluation import translation_metrics
from tfm.io import local_copies
from tfm.workdir import runs
from tfm.workdir.evaluations import SUFFIX, read_record


class System(NamedTuple):
    """The outputs of a run on a test set.

    Attributes:
      path: the file of the hypotheses.
      language: code of the language of the references and the hypotheses, such as "de".
      tokenizer: sacreBLEU's tokenizer of BLEU.
      sources, references, hypotheses: texts in the order of the test set, of equal number.
      others: further references.
    """

    path: str
    language: str
    tokenizer: str
    sources: list[str]
    references: list[str]
    hypotheses: list[str]
    others: list[list[str | None]]


@command
def main(options: Compare) -> None:
    """Prints the scores of two runs, the significance of the difference, and the most different sentences."""
    first, second = read_systems(options.first, options.second, options.split, options.names)
    show_scores(first, second)
    show_significance(first, second)
    show_differences(first, second, options.sentences)


def read_systems(first: str, second: str, split: str, names: Sequence[str] = ()) -> list[System]:
    """Reads the `System` of each of two work directories. They may be the same folder.

    Args:
      first, second: the work directories.
      split: the split that was evaluated in both.
      names: the --name of each evaluation. A single name applies to both. Empty if neither had a --name.

    Raises:
      UserError: if `read_system` raises, if there are more than two names, or if the test sets differ.
    """
    if len(names) > 2:
        raise UserError(f"Two evaluations have at most two names, got {', '.join(names)}.")
    names = (names[0], names[-1]) if names else ("", "")
    systems = [read_system(folder, name, split) for folder, name in zip((first, second), names, strict=True)]
    texts = [(system.sources, system.references, system.others) for system in systems]
    if texts[0] != texts[1]:
        raise UserError(
            f"{systems[0].path} and {systems[1].path} have different sources or references. "
            "Only runs on the same test set can be compared."
        )
    return systems


def most_different(first: System, second: System, count: int) -> list[tuple[int, float, float]]:
    """Returns the sentences whose chrF2 differs most, at most `count`, the largest difference first.

    Returns:
      (number of the sentence from 1, chrF2 of the first system, chrF2 of the second) for each sentence, where
      chrF2 is between 0 and 100. Sentences with equal scores are left out.
    """
    scores = (
        translation_metrics.sentence_chrf(run.hypotheses, run.references, run.others)
        for run in (first, second)
    )
    rows = [row for row in zip(itertools.count(1), *scores, strict=False) if row[1] != row[2]]
    return sorted(rows, key=lambda row: abs(row[1] - row[2]), reverse=True)[:count]


def show_scores(first: System, second: System) -> None:
    """Prints the paths of both systems, the number of sentences, and all scores, one score on each line."""
    for name, system in (("A", first), ("B", second)):
        print(f"{name}  {local_copies.show(system.path)}")
    print(f"{len(first.references):,} sentences\n")
    print(f"{'':<27}{'A':>7} {'B':>7}")
    scores = [
        translation_metrics.scores(
            one.hypotheses, one.references, one.language, one.tokenizer, others=one.others
        )
        for one in (first, second)
    ]
    for a, b in zip(*scores, strict=True):
        print(f"{a.name:<27}{a.value:7.2f} {b.value:7.2f}  {a.signature}")


def show_significance(first: System, second: System) -> None:
    """Prints scores, intervals and the p-value of the paired bootstrap, one metric on each line."""
    print(
        f"\npaired bootstrap, {translation_metrics.RESAMPLES:,} resamples: "
        "score (mean ± half of the 95 % interval)\n"
    )
    print(f"{'':<6}{'A':>23} {'B':>23} {'p':>7}")
    for row in translation_metrics.paired_bootstrap(
        first.hypotheses, second.hypotheses, first.references, first.tokenizer, first.others
    ):
        a, b = (f"{one.score:.2f} ({one.mean:.2f} ± {one.ci:.2f})" for one in (row.first, row.second))
        print(f"{row.name:<6}{a:>23} {b:>23} {row.p_value:7.4f}  {row.signature}")


def show_differences(first: System, second: System, count: int) -> None:
    """Prints source, reference and both hypotheses of the `count` sentences whose chrF2 differs most."""
    for number, a, b in most_different(first, second, count):
        print(f"\nsentence {number:,}: chrF2 {a:.2f} in A, {b:.2f} in B")
        texts = {
            "source": first.sources,
            "reference": first.references,
            "A": first.hypotheses,
            "B": second.hypotheses,
        }
        for name, sentences in texts.items():
            print(f"{name:<10} {terminal.escape_controls(sentences[number - 1])}")


def read_system(workdir: str, name: str, split: str, command: str = "tfm compare") -> System:
    """Reads the `System` of a work directory.

    The sources and references come from the data that the evaluation recorded. If it has no record, they come
    from the data of the run's config.

    Args:
      workdir: the work directory.
      name: the --name of the evaluation. "" if it had none, so that the split names its files.
      split: the split that was evaluated.
      command: the command that reads the system, for the error messages.

    Raises:
      UserError: if there is no run, it has no BLEU, or it has no evaluation of this split and name, or if the
        evaluated texts differ from the present texts of the test set.
    """
    config = runs.open_folder(workdir).config
    runs.require_bleu(config, command)
    stem = runs.evaluation_stem(workdir, split, config.data.target_language, name)
    path = f"{stem}.hypotheses"
    if not os.path.isfile(path):
        named = f" --name={name}" if name else ""
        raise UserError(
            f"Expected hypotheses in {path}, but there are none: "
            f"run tfm evaluate --workdir={shlex.quote(workdir)} --split={split}{named} first."
        )
    hypotheses = [line.strip() for line in TextFile(path)]
    scores = stem + SUFFIX
    record = read_record(scores) if os.path.exists(scores) else None
    data = config.data
    if record is not None:  # an export has no paths of data, and other data may be given
        data = from_mapping(type(data), record.data, f"data in {scores}")
    sources, references = read_sides(data, split)
    tokenizer = (record.decoding if record else {}).get("bleu_tokenizer", config.bleu_tokenizer)
    config = dataclasses.replace(config, bleu_tokenizer=tokenizer)
    if len(hypotheses) != len(references):
        raise UserError(
            f"{path} has {len(hypotheses):,} lines and its test set {len(references):,}. Evaluate again."
        )
    if record is not None and record.texts != fingerprint_texts(sources, references):
        raise UserError(
            f"{scores} and its hypotheses belong to other texts than the test set here. Give the --split "
            "that was evaluated, or evaluate again."
        )
    tokenizer = config.choose_bleu_tokenizer(references)
    others = read_references(data, split)
    return System(path, data.target_language, tokenizer, sources, references, hypotheses, others)
