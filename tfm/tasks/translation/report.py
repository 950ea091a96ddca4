"""Translates and scores a split. The built-in language has further scores that need its grammar."""

import dataclasses
import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tfm.data.config import PairsConfig
from tfm.data.sources.builtin import read_feature
from tfm.data.sources.opening import fingerprint_texts, open_corpora, read_references, read_sides
from tfm.data.sources.splits import find_name
from tfm.data.tokenizers.round_trip import count_changed
from tfm.decoding.protocol import Ensemble, Params
from tfm.errors import UserError
from tfm.evaluation.alignment import alignment_error_rate, from_pharaoh
from tfm.evaluation.language_modeling_metrics import compute_perplexity
from tfm.evaluation.score import Score
from tfm.evaluation.translation_metrics import bleu, exact_match, scores
from tfm.training.task import Report

if TYPE_CHECKING:
    from tfm.tasks.translation.task import Translation

log = logging.getLogger(__name__)


def report_split(task: "Translation", params: Params | Ensemble, split: str) -> Iterator[Report]:
    """Yields the report of a split: its translations with their scores, the perplexity last.

    For the test split of the built-in language, translated from English to German, yields it a second time
    with the scores of the challenges.

    Raises:
      UserError: if the split or its further references cannot be used, a package for the scores is missing,
        or all pairs are too long for the model.
    """
    data = task.config.data
    sources, references = read_sides(data, split)
    others = read_references(data, split)
    warn_of_tokenized_texts(references)
    tokenizer = task.config.choose_bleu_tokenizer(references)
    bleu(references[:1], references[:1], tokenizer)  # fails before the search if a package is missing
    began = time.monotonic()
    hypotheses = task.translate(params, sources)
    rate = len(sources) / (time.monotonic() - began)
    report = Report(
        hypotheses,
        [
            *scores(
                hypotheses, references, data.target_language, tokenizer, ter=task.config.ter, others=others
            ),
            *score_corpora(data, split, hypotheses, references, tokenizer, others),
            perplexity(task, params, sources, references),
        ],
        [
            {"source": source, "reference": reference, "hypothesis": hypothesis}
            for source, reference, hypothesis in zip(sources, references, hypotheses, strict=True)
        ],
        task.config.evaluation_settings,
        rate,
        fingerprint_texts(sources, references),
    )
    yield report
    if data.kind == "builtin" and data.languages == ("en", "de") and split == "test" and not data.tags:
        challenges = score_challenges(task, params, sources, references, hypotheses)
        yield report._replace(scores=[*report.scores, *challenges])


def score_corpora(
    data: PairsConfig,
    split: str,
    hypotheses: Sequence[str],
    references: Sequence[str],
    tokenizer: str,
    others: Sequence[Sequence[str | None]] = (),
) -> list[Score]:
    """Returns the BLEU of each corpus of a split, with the name "BLEU, CORPUS".

    Returns [] if the data have neither tags nor mixing, because all pairs are then one corpus.
    """
    if not data.tags and not data.mixing:
        return []
    names = [name.strip() for name in find_name(data, split).split(",")]
    sizes = list(map(len, open_corpora(dataclasses.replace(data, joined_share=0.0), split)))
    ends = list(itertools.accumulate(sizes))
    rows = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    return [
        bleu(
            hypotheses[part], references[part], tokenizer, [reference[part] for reference in others]
        )._replace(name=f"BLEU, {name}")
        for name, part in zip(names, rows, strict=True)
    ]


def warn_of_tokenized_texts(references: Sequence[str]) -> None:
    """Logs a warning if more than half of the references end in a separate period, as tokenized texts do."""
    if 2 * sum(text.endswith(" .") for text in references) > len(references):
        log.warning(
            "Most references end in a period after a space, so they seem to be tokenized. Published scores "
            "of sacreBLEU are for detokenized texts. Do not compare them with the scores of these references."
        )


def perplexity(
    task: "Translation", params: Params | Ensemble, sources: Sequence[str], references: Sequence[str]
) -> Score:
    """Computes the perplexity of the references per word piece, including EOS, as in Table 3 of the paper.

    The probabilities are not smoothed. Perplexities can be compared only between models with the same
    vocabulary. For an ensemble, the probabilities of the models are averaged. Pairs that are longer than the
    positions of the model are left out.

    Returns:
      A `Score`. Its signature contains the numbers of pieces, of references and of pairs that were left out.

    Raises:
      UserError: if all pairs are too long.
    """
    longest, form = task.config.model.max_length, task.form
    encoded = [
        [text.ids for text in side]
        for side in (form.encode_sources(sources), form.encode_targets(references))
    ]
    fits = find_fitting_pairs(longest, *encoded)
    kept = [list(itertools.compress(side, fits)) for side in (sources, references)]
    pieces = np.concatenate(task.score(params, *kept))
    value = compute_perplexity(-pieces.mean(dtype=np.float64))
    counted = f"{len(pieces):,} pieces of {fits.sum():,} references, ends counted"
    if changed := count_changed(form.tokenizer, map(form.read_target, references), encoded[1]):
        counted += f", {changed:,} changed by the tokenizer: compare only with the same tokenizer"
    if not fits.all():
        counted += f", {(~fits).sum():,} pairs of over {longest:,} tokens left out"
    return Score("perplexity", value, f"vocabulary {len(form.tokenizer):,}, {counted}")


def find_fitting_pairs(longest: int | None, *sides: Sequence[Sequence[int]]) -> np.ndarray:
    """Returns whether each pair is at most as long as the positions of the model, bool [pairs].

    Args:
      longest: number of positions of the model, or None for no limit.
      *sides: the ids of all sources, and of all references, without EOS.

    Raises:
      UserError: if all pairs are longer.
    """
    fits = np.max([[len(ids) + 1 for ids in side] for side in sides], axis=0) <= (longest or np.inf)
    if not fits.any():
        raise UserError(
            f"Expected pairs of at most {longest:,} tokens on each side, the positions of the model, but all "
            f"{len(fits):,} pairs are longer. Use shorter pairs or a model with more positions."
        )
    return fits


def score_challenges(
    task: "Translation",
    params: Params | Ensemble,
    sources: Sequence[str],
    references: Sequence[str],
    hypotheses: Sequence[str],
) -> list[Score]:
    """Computes the scores that exist only for the built-in language, from English to German.

    Args:
      task, params: task and parameters of a model of the built-in language.
      sources, references, hypotheses: its test split and the translations of the model.

    Returns:
      A list of `Score`: exact matches on the test split, accuracy on the split "pronoun" (how often the right
      translation is more probable than the translation whose pronoun has the wrong gender), BLEU on the split
      "long", and the alignment error rate on the test split if the model has attention to the source. A
      warning says why there is no alignment error rate.
    """
    name = find_name(task.config.data, "test")  # such as test[:50]
    pronoun_sources, right = read_sides(task.config.data, "pronoun")
    wrong = read_feature("pronoun", "wrong")
    right_scores, wrong_scores = (
        np.array([scores.sum() for scores in task.score(params, pronoun_sources, side)])
        for side in (right, wrong)
    )
    pronouns = 100 * float((right_scores > wrong_scores).mean())
    long_sources, long_references = read_sides(task.config.data, "long")
    results = [
        Score("exact match", exact_match(hypotheses, references), f"per cent of {name}"),
        Score("pronoun accuracy", pronouns, "per cent of pronoun, by log-probability"),
        bleu(task.translate(params, long_sources), long_references)._replace(name="BLEU, long"),
    ]
    try:
        true = [from_pharaoh(text) for text in read_feature(name, "alignment")]
        rate = alignment_error_rate(task.align(params, sources, references), true)
    except UserError as error:
        log.warning("No alignment error rate. %s", error)
        return results
    signature = f"per cent, attention against the grammar's alignment, reference translations of {name}"
    return [*results, Score("alignment error rate", 100 * rate, signature)]
