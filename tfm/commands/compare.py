"""Compares two runs on one test set: tfm compare DIR_A DIR_B

Reads the hypotheses that eval.py left in both work directories and prints the scores of both, whether these
differ by more than the choice of test sentences, and the sentences that differ most. Two evaluations of one
run are told apart by the --name that eval.py was given: DIR DIR --name=best --name=averaged.
"""

import itertools
import os
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from absl import flags

from tfm import config
from tfm.commands import cli, config_flag
from tfm.data.sources.opening import fingerprint_texts, read_sides
from tfm.data.sources.text_files import TextFile
from tfm.errors import UserError
from tfm.evaluation import translation_metrics
from tfm.workdir import runs


class System(NamedTuple):
    """The outputs of a run on a test set: texts in its order, and the language of references and hypotheses.

    Attributes:
      path: of the hypotheses.
    """

    path: str
    language: str
    sources: list[str]
    references: list[str]
    hypotheses: list[str]


class Difference(NamedTuple):
    """A sentence, counted from 1, and its chrF2 in both systems."""

    number: int
    first: float
    second: float


def read_systems(first: str, second: str, split: str, names: Sequence[str] = ()) -> list[System]:
    """The `System` of each of two work directories.

    Args:
      first, second: the work directories, which may be one.
      split: that eval.py translated in both.
      names: of the two evaluations, one where they have the same, none where they are called after the split.

    Raises:
      UserError: no run there, eval.py has not been run on it, more names than two, or the test sets differ.
    """
    if len(names) > 2:
        raise UserError(f"Two evaluations have at most two names, got {', '.join(names)}.")
    names = (names[0], names[-1]) if names else ("", "")
    systems = [read_system(*each, split) for each in zip((first, second), names, strict=True)]
    _check_same_test(*systems)
    return systems


def most_different(first: System, second: System, count: int) -> list[Difference]:
    """At most `count` of the sentences whose chrF2 differs, in order of how much."""
    scored = [
        translation_metrics.sentence_chrf(system.hypotheses, system.references) for system in (first, second)
    ]
    differences = map(Difference, itertools.count(1), *scored)
    differing = (one for one in differences if one.first != one.second)
    return sorted(differing, key=lambda one: abs(one.first - one.second), reverse=True)[:count]


def show_scores(first: System, second: System) -> None:
    """All scores of both, a line each."""
    print(f"A  {first.path}\nB  {second.path}\n{len(first.references):,} sentences\n")
    print(f"{'':<27}{'A':>7} {'B':>7}")
    scores = [
        translation_metrics.scores(one.hypotheses, one.references, one.language) for one in (first, second)
    ]
    for a, b in zip(*scores, strict=True):
        print(f"{a.name:<27}{a.value:7.2f} {b.value:7.2f}  {a.signature}")


def show_significance(first: System, second: System) -> None:
    """The paired bootstrap, a line each metric."""
    print(
        f"\npaired bootstrap, {translation_metrics.RESAMPLES:,} resamples: "
        "score (mean ± half of the 95 % interval)\n"
    )
    print(f"{'':<6}{'A':>21} {'B':>21} {'p':>7}")
    for row in translation_metrics.paired_bootstrap(first.hypotheses, second.hypotheses, first.references):
        a, b = (f"{one.score:.2f} ({one.mean:.2f} ± {one.ci:.2f})" for one in (row.first, row.second))
        print(f"{row.name:<6}{a:>21} {b:>21} {row.p_value:7.4f}  {row.signature}")


def show_differences(first: System, second: System, count: int) -> None:
    """The sentences that differ most, with all that there is of them."""
    for number, a, b in most_different(first, second, count):
        print(f"\nsentence {number:,}: chrF2 {a:.2f} in A, {b:.2f} in B")
        print(f"source     {first.sources[number - 1]}\nreference  {first.references[number - 1]}")
        print(f"A          {first.hypotheses[number - 1]}\nB          {second.hypotheses[number - 1]}")


def read_system(workdir: str, name: str, split: str, command: str = "tfm compare") -> System:
    """The `System` of a work directory.

    Args:
      workdir: the work directory.
      name: of the evaluation; "" where it is called after the split.
      split: that eval.py translated.
      command: that reads it, for the error messages.

    Raises:
      UserError: no run there, or eval.py has not been run on it.
    """
    chosen = runs.read_config(workdir)
    runs.require_bleu(chosen, command)
    data = chosen.data
    stem = runs.evaluation_stem(workdir, split, data.target_language, name)
    path = f"{stem}.hypotheses"
    if not os.path.isfile(path):
        named = f" --name={name}" if name else ""
        raise UserError(
            f"Expected hypotheses in {path}, but there are none: "
            f"run tfm evaluate --workdir={shlex.quote(workdir)} --split={split}{named} first."
        )
    hypotheses = [line.strip() for line in TextFile(path)]
    sources, references = read_sides(data, split)
    if len(hypotheses) != len(references):
        raise UserError(
            f"{path} has {len(hypotheses):,} lines and its test set {len(references):,}: evaluate again."
        )
    check_texts(f"{stem}.scores.json", sources, references)
    return System(path, data.target_language, sources, references, hypotheses)


def check_texts(path: str, sources: Sequence[str], references: Sequence[str]) -> None:
    """Whether the texts are those that eval.py translated, as far as the scores beside the hypotheses tell.

    Raises:
      UserError: they are others, such as those of another split, or of an override of eval.py.
    """
    if not os.path.exists(path):
        return
    translated = config.load(path).get("texts")
    if translated not in (None, fingerprint_texts(sources, references)):
        raise UserError(
            f"{path} and the hypotheses beside it are of other texts than the test set here: give the "
            "--split that they were evaluated on, or evaluate again."
        )


def _check_same_test(first, second):
    if (first.sources, first.references) != (second.sources, second.references):
        raise UserError(
            f"The sources or references of {first.path} are not those of {second.path}: "
            "only runs on one test set can be compared."
        )


def define_flags(values: flags.FlagValues, argv: Sequence[str]) -> None:
    """The flags of the command, in `values`."""
    config_flag.define_import(values, argv)
    text = "Split that eval.py translated in both work directories."
    flags.DEFINE_string("split", "test", text, values)
    text = "The --name that eval.py was given: once if it is that of both, else that of A, then of B."
    flags.DEFINE_multi_string("name", [], text, values)
    text = "Sentences to print, those that differ most."
    flags.DEFINE_integer("sentences", 5, text, 0, flag_values=values)


def main(argv: Sequence[str] | None = None) -> None:
    """Compares; see `tfm.commands.cli.parse` for `argv` and what is raised."""
    arguments, (first, second) = cli.parse(__name__, argv, define_flags, ("DIR_A", "DIR_B"))
    a, b = read_systems(first, second, arguments.split, arguments.name)
    show_scores(a, b)
    show_significance(a, b)
    show_differences(a, b, arguments.sentences)
