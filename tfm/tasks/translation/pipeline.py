"""Translates, scores and aligns texts. Each function tokenizes its inputs."""

import logging
from collections.abc import Iterable
from typing import NamedTuple

import flax.linen as nn
import numpy as np

from tfm.arguments import check_texts
from tfm.data.tokenizers.protocol import EOS_ID, PieceTokenizer, number_words, split_ids
from tfm.decoding.config import DecodingConfig
from tfm.decoding.mbr import expected_utilities
from tfm.decoding.parameters import Ensemble, Params
from tfm.decoding.score import attend_pairs, score_pairs
from tfm.decoding.translate import translate_ids
from tfm.errors import UserError
from tfm.evaluation.alignment import Links, align_words

log = logging.getLogger(__name__)


class Hypothesis(NamedTuple):
    """A translation of a text.

    Attributes:
      text: the translation.
      score: the score of the `TokenHypothesis`, or the expected utility if the translations are samples.
    """

    text: str
    score: float


def translate_texts(
    model: nn.Module,
    params: Params | Ensemble,
    tokenizer: PieceTokenizer,
    sentences: Iterable[str],
    config: DecodingConfig,
    *,
    n_best: int = 1,
    prefixes: Iterable[str] | None = None,
) -> list[list[Hypothesis]]:
    """Translates texts.

    The translation of an empty text is empty. An input with `config.max_input` tokens or more is split or
    cut, with a warning. The n-th best translation of a split input joins the n-th best translations of its
    parts, and its score is the sum of their scores.

    Args:
      model, params, config, n_best: see `tfm.decoding.translate.translate_ids`.
      tokenizer: tokenizer of the model.
      sentences: texts.
      prefixes: texts that the translations must begin with, one for each sentence, or None. The prefix of a
        split input applies to its first part.

    Returns:
      A list of `Hypothesis` for each sentence, best first. Each list has at least one element.

    Raises:
      UserError: if an argument is not a list of texts, `prefixes` and `sentences` differ in length, or
        `n_best` is larger than the beam.
    """
    if prefixes is None:
        sentences = check_texts("sentences", sentences)
    else:
        sentences, prefixes = _check_paired(sentences=sentences, prefixes=prefixes)
    tokens = tokenizer.encode(sentences)
    parts = [(i, part) for i, ids in enumerate(tokens) for part in _split_input(tokenizer, ids, config)]
    begins: list[list[int]] | None = None
    starts = [i == 0 or parts[i - 1][0] != sentence for i, (sentence, _) in enumerate(parts)]
    if prefixes is not None:
        encoded = tokenizer.encode(prefixes)
        begins = [encoded[i] if first else [] for (i, _), first in zip(parts, starts, strict=True)]
    inputs = [[*part, EOS_ID] for _, part in parts]
    outputs = translate_ids(model, params, inputs, config, n_best=n_best, prefixes=begins)
    translations: list[list[list[Hypothesis]]] = [[] for _ in sentences]
    for (i, _), hypotheses in zip(parts, outputs, strict=True):
        texts = [Hypothesis(tokenizer.decode(ids), score) for ids, score in hypotheses]
        translations[i].append(_rank_by_utility(texts, config.utility) if config.samples else texts)
    return [_join(of_parts, n_best) for of_parts in translations]


def score_texts(
    model: nn.Module,
    params: Params | Ensemble,
    tokenizer: PieceTokenizer,
    sources: Iterable[str],
    targets: Iterable[str],
    config: DecodingConfig,
) -> list[np.ndarray]:
    """Computes the log-probabilities of the pieces and the EOS of each target text, given its source.

    Returns:
      A float32 array [pieces + 1] for each pair.

    Raises:
      UserError: if `sources` and `targets` are not lists of texts of the same length.
    """
    sides = _check_paired(sources=sources, targets=targets)
    inputs, labels = ([[*ids, EOS_ID] for ids in tokenizer.encode(side)] for side in sides)
    return score_pairs(model, params, inputs, labels, config)


def align_texts(
    model: nn.Module,
    params: Params | Ensemble,
    tokenizer: PieceTokenizer,
    sources: Iterable[str],
    targets: Iterable[str],
    config: DecodingConfig,
) -> list[Links]:
    """Aligns the words of each pair by the attention of the model.

    Words are separated by white space. The alignment of a pair is empty if a side is empty or, including EOS,
    longer than `config.max_input` tokens, or if the vocabulary splits a side into other words than white
    space does, for example at an invisible character.

    Returns:
      For each pair a set of (source word, target word), counted from 0.

    Raises:
      UserError: if `sources` and `targets` are not lists of texts of the same length.
    """
    sides = _check_paired(sources=sources, targets=targets)
    encoded = list(zip(*map(tokenizer.encode, sides), strict=True))
    usable = [
        i
        for i, sides in enumerate(encoded)
        if 0 < min(map(len, sides)) <= max(map(len, sides)) < config.max_input
    ]
    too_long = sum(max(map(len, sides)) >= config.max_input for sides in encoded)
    if too_long:
        log.warning(
            "%s pairs have no alignment, because a side has decoding.max_input=%s tokens or more",
            f"{too_long:,}",
            f"{config.max_input:,}",
        )
    words = {i: [number_words(tokenizer, side) for side in encoded[i]] for i in usable}
    usable = [i for i in usable if _count_words(words[i]) == [len(side[i].split()) for side in sides]]
    if len(usable) < len(words):
        log.warning(
            "%s pairs have no alignment, because the vocabulary splits a side into other words than white "
            "space does, for example at an invisible character",
            f"{len(words) - len(usable):,}",
        )
    pairs = [[[*side, EOS_ID] for side in encoded[i]] for i in usable]
    attention = attend_pairs(model, params, [s for s, _ in pairs], [t for _, t in pairs], config)
    alignments: list[Links] = [set() for _ in encoded]
    for i, weights in zip(usable, attention, strict=True):
        alignments[i] = align_words(weights, *words[i])
    return alignments


def _count_words(numbers: list[list[int]]) -> list[int]:
    """Returns the number of words of each side. `numbers` contains the word number of each piece."""
    return [side[-1] + 1 for side in numbers]


def _check_paired(**named: Iterable[str]) -> tuple[list[str], list[str]]:
    """Returns two arguments, given by name, as lists of texts of the same length.

    Raises:
      UserError: if an argument is not a list of texts, for example a single text, or if the lengths differ.
    """
    (first, many), (second, other) = named.items()
    lists = check_texts(first, many), check_texts(second, other)
    expected, count = map(len, lists)
    if expected != count:
        raise UserError(
            f"Expected as many {second} as {first}, {expected:,}, got {count:,}. Give one for each of the "
            f"{first}."
        )
    return lists


def _split_input(tokenizer: PieceTokenizer, ids: list[int], config: DecodingConfig) -> list[list[int]]:
    """Returns the parts of a sentence that are translated separately. An empty sentence has no parts."""
    longest = config.max_input - 1
    if len(ids) <= longest:
        return [ids] if ids else []
    parts = split_ids(tokenizer, ids, longest)
    if config.overflow == "cut":
        log.warning("Cut an input of %s tokens to %s (decoding.max_input)", f"{len(ids):,}", longest)
        return parts[:1]
    log.warning("Split an input of %s tokens into %s (decoding.max_input)", f"{len(ids):,}", len(parts))
    return parts


def _rank_by_utility(texts: list[Hypothesis], utility: str) -> list[Hypothesis]:
    """Returns the distinct samples with their expected utility as score, best first."""
    utilities = expected_utilities([text for text, _ in texts], utility)
    ranked = dict(zip((text for text, _ in texts), utilities, strict=True))
    best_first = sorted(ranked.items(), key=lambda item: item[1], reverse=True)
    return [Hypothesis(text, score) for text, score in best_first]


def _join(parts: list[list[Hypothesis]], n_best: int) -> list[Hypothesis]:
    """Joins the n-th best hypotheses of all parts for each n. Without parts, the only one is empty."""
    depth = min(map(len, parts), default=0)
    joined = [
        Hypothesis(" ".join(part[n].text for part in parts), sum(part[n].score for part in parts))
        for n in range(min(depth, n_best))
    ]
    return joined or [Hypothesis("", 0.0)]
