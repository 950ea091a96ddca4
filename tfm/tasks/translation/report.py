"""Translates a split and scores it; for the built-in language also what only its grammar can tell."""

import dataclasses
import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfm.data.sources.builtin import read_feature
from tfm.data.sources.opening import fingerprint_texts, read_sides
from tfm.errors import UserError
from tfm.evaluation.alignment import alignment_error_rate, from_pharaoh
from tfm.evaluation.score import Score
from tfm.evaluation.translation_metrics import bleu, exact_match, scores
from tfm.training.task import Report

log = logging.getLogger(__name__)


class Evaluation(NamedTuple):
    """What came out of a split: texts in its order, scores, and how fast (compilation included)."""

    sources: list[str]
    hypotheses: list[str]
    references: list[str]
    scores: list[Score]
    sentences_per_second: float


def report_split(task: Any, params: Any, split: str) -> Iterator[Report]:
    """The report of a split; for the built-in language's test then the same with its challenges."""
    test = evaluate(task, params, split)
    names = ("source", "reference", "hypothesis")
    triples = zip(test.sources, test.references, test.hypotheses, strict=True)
    report = Report(
        test.hypotheses,
        test.scores,
        [dict(zip(names, triple, strict=True)) for triple in triples],
        dataclasses.asdict(task.config.decoding),
        test.sentences_per_second,
        fingerprint_texts(test.sources, test.references),
    )
    yield report
    if task.config.data.kind == "builtin" and split == "test":
        yield report._replace(scores=[*test.scores, *score_challenges(task, params, test)])


def evaluate(task: Any, params: Any, split: str) -> Evaluation:
    """Beam search over a split by the task's decoding config, and its scores, perplexity last."""
    data = task.config.data
    sources, references = read_sides(data, split)
    began = time.monotonic()
    hypotheses = task.translate(params, sources)
    rate = len(sources) / (time.monotonic() - began)
    found = [
        *scores(hypotheses, references, data.target_language),
        perplexity(task, params, sources, references),
    ]
    return Evaluation(sources, hypotheses, references, found, rate)


def perplexity(task: Any, params: Any, sources: Sequence[str], references: Sequence[str]) -> Score:
    """Perplexity of the references per word piece, the end of each counted: the measure of Table 3.

    No label is smoothed. Only models of one vocabulary compare, whose pieces are alike. Of an ensemble it is
    that of the mean of the probabilities.

    Returns:
      A `Score` whose signature tells what was counted; pairs that the model has no positions for are not.

    Raises:
      UserError: it has for none.
    """
    longest = task.config.model.max_length
    sides = (sources, references)
    lengths = np.max([[len(ids) + 1 for ids in task.tokenizer.encode(side)] for side in sides], axis=0)
    fits = lengths <= (longest or np.inf)
    if not fits.any():
        raise UserError(f"None of the {len(fits):,} pairs fits into the {longest:,} positions of the model.")
    kept = [list(itertools.compress(side, fits)) for side in sides]
    pieces = np.concatenate(task.score(params, *kept))
    with np.errstate(over="ignore"):  # of a model that has diverged it is infinite
        value = np.exp(-pieces.mean(dtype=np.float64))
    counted = f"{len(pieces):,} pieces of {fits.sum():,} references, ends counted"
    if not fits.all():
        counted += f", {(~fits).sum():,} pairs of over {longest:,} tokens left out"
    return Score("perplexity", float(value), f"vocabulary {len(task.tokenizer):,}, {counted}")


def score_challenges(task: Any, params: Any, test: Evaluation) -> list[Score]:
    """Scores on the built-in language beyond BLEU.

    Args:
      task, params: a model of the built-in language.
      test: the `Evaluation` of its test split.

    Returns:
      list of `Score`: exact matches on the test split, accuracy on the split "pronoun" (how often the right
      translation is more probable than the one whose pronoun has the wrong gender), BLEU on the split "long",
      alignment error rate.
    """
    sources, right = read_sides(task.config.data, "pronoun")
    wrong = read_feature("pronoun", "wrong")
    right_scores, wrong_scores = (
        np.array([scores.sum() for scores in task.score(params, sources, side)]) for side in (right, wrong)
    )
    long_sources, long_references = read_sides(task.config.data, "long")
    long = bleu(task.translate(params, long_sources), long_references)
    return [
        Score("exact match", exact_match(test.hypotheses, test.references), "per cent of test"),
        Score(
            "pronoun accuracy",
            100 * float((right_scores > wrong_scores).mean()),
            "per cent of pronoun, by log-probability",
        ),
        long._replace(name="BLEU, long"),
        *alignment_scores(task, params, test),
    ]


def alignment_scores(task: Any, params: Any, test: Evaluation) -> list[Score]:
    """Returns the alignment error rate, or nothing for a model without attention to the source."""
    true = [from_pharaoh(text) for text in read_feature("test", "alignment")]
    try:
        found = task.align(params, test.sources, test.references)
    except UserError as error:
        log.warning("No alignment error rate. %s", error)
        return []
    signature = "per cent, attention against the grammar's alignment, reference translations of test"
    return [Score("alignment error rate", 100 * alignment_error_rate(found, true), signature)]
