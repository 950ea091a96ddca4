"""Translates and scores a split. The built-in language has further scores that need its grammar."""

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
    """The translations of a split with their scores.

    Attributes:
      sources, hypotheses, references: texts in the order of the split.
      scores: scores of the translations, perplexity last.
      sentences_per_second: speed of the translation, including compilation.
    """

    sources: list[str]
    hypotheses: list[str]
    references: list[str]
    scores: list[Score]
    sentences_per_second: float


def report_split(task: Any, params: Any, split: str) -> Iterator[Report]:
    """Yields the report of a split.

    For the test split of the built-in language, yields it a second time with the scores of the challenges.
    """
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
    """Translates a split with the search of the task's config, and scores the translations."""
    data = task.config.data
    sources, references = read_sides(data, split)
    began = time.monotonic()
    hypotheses = task.translate(params, sources)
    rate = len(sources) / (time.monotonic() - began)
    split_scores = [
        *scores(hypotheses, references, data.target_language),
        perplexity(task, params, sources, references),
    ]
    return Evaluation(sources, hypotheses, references, split_scores, rate)


def perplexity(task: Any, params: Any, sources: Sequence[str], references: Sequence[str]) -> Score:
    """Computes the perplexity of the references per word piece, including EOS, as in Table 3 of the paper.

    The probabilities are not smoothed. Perplexities can be compared only between models with the same
    vocabulary. For an ensemble, the probabilities of the models are averaged. Pairs that are longer than the
    positions of the model are left out.

    Returns:
      A `Score`. Its signature contains the numbers of pieces, of references and of pairs that were left out.

    Raises:
      UserError: if all pairs are too long.
    """
    longest = task.config.model.max_length
    sides = (sources, references)
    lengths = np.max([[len(ids) + 1 for ids in task.tokenizer.encode(side)] for side in sides], axis=0)
    fits = lengths <= (longest or np.inf)
    if not fits.any():
        raise UserError(
            f"Expected pairs of at most {longest:,} tokens on each side, the positions of the model, but all "
            f"{len(fits):,} pairs are longer. Use shorter pairs or a model with more positions."
        )
    kept = [list(itertools.compress(side, fits)) for side in sides]
    pieces = np.concatenate(task.score(params, *kept))
    with np.errstate(over="ignore"):  # the perplexity of a diverged model can be infinite
        value = np.exp(-pieces.mean(dtype=np.float64))
    counted = f"{len(pieces):,} pieces of {fits.sum():,} references, ends counted"
    if not fits.all():
        counted += f", {(~fits).sum():,} pairs of over {longest:,} tokens left out"
    return Score("perplexity", float(value), f"vocabulary {len(task.tokenizer):,}, {counted}")


def score_challenges(task: Any, params: Any, test: Evaluation) -> list[Score]:
    """Computes the scores that exist only for the built-in language.

    Args:
      task, params: task and parameters of a model of the built-in language.
      test: the `Evaluation` of its test split.

    Returns:
      A list of `Score`: exact matches on the test split, accuracy on the split "pronoun" (how often the right
      translation is more probable than the translation whose pronoun has the wrong gender), BLEU on the split
      "long", and the alignment error rate on the test split if the model has attention to the source.
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
    """Returns the alignment error rate, or an empty list for a model without attention to the source."""
    true = [from_pharaoh(text) for text in read_feature("test", "alignment")]
    try:
        predicted = task.align(params, test.sources, test.references)
    except UserError as error:
        log.warning("No alignment error rate. %s", error)
        return []
    signature = "per cent, attention against the grammar's alignment, reference translations of test"
    return [Score("alignment error rate", 100 * alignment_error_rate(predicted, true), signature)]
