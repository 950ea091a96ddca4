"""From texts to texts: tokenizes, searches, scores or aligns, and detokenizes."""

import logging
from collections.abc import Iterable
from typing import NamedTuple

import flax.linen as nn
import numpy as np

from tfm.arguments import check_texts
from tfm.data.tokenizer import EOS_ID, Tokenizer
from tfm.decoding.config import DecodingConfig
from tfm.decoding.mbr import expected_utilities
from tfm.decoding.parameters import Ensemble, Params
from tfm.decoding.score import attend_pairs, score_pairs
from tfm.decoding.translate import translate_ids
from tfm.errors import UserError
from tfm.evaluation.alignment import Links, align_words

log = logging.getLogger(__name__)


class Hypothesis(NamedTuple):
    """A translation; its score is that of its `TokenHypothesis`, but of samples their expected utility."""

    text: str
    score: float


def translate_texts(
    model: nn.Module,
    params: Params | Ensemble,
    tokenizer: Tokenizer,
    sentences: Iterable[str],
    config: DecodingConfig,
    *,
    n_best: int = 1,
    prefixes: Iterable[str] | None = None,
) -> list[list[Hypothesis]]:
    """Translations of texts.

    The translation of an empty text is empty. An input over `config.max_input` is split or cut, with a
    warning; the n-th best translation of a split one joins the n-th best of its parts, with added scores.

    Args:
      model, params, config, n_best: see `tfm.decoding.translate.translate_ids`.
      tokenizer: of the model.
      sentences: texts.
      prefixes: texts with which the translations begin, or None.

    Returns:
      A list of `Hypothesis` for each sentence, the best first and at least one.

    Raises:
      UserError: no lists of texts, a prefix too many or too few, or more wanted than the beam holds.
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
    found = translate_ids(model, params, inputs, config, n_best=n_best, prefixes=begins)
    translations: list[list[list[Hypothesis]]] = [[] for _ in sentences]
    for (i, _), hypotheses in zip(parts, found, strict=True):
        texts = [Hypothesis(tokenizer.decode(ids), score) for ids, score in hypotheses]
        translations[i].append(_rank_by_utility(texts, config.utility) if config.samples else texts)
    return [_join(each, n_best) for each in translations]


def score_texts(
    model: nn.Module,
    params: Params | Ensemble,
    tokenizer: Tokenizer,
    sources: Iterable[str],
    targets: Iterable[str],
    config: DecodingConfig,
) -> list[np.ndarray]:
    """Log-probabilities of each target text's pieces and EOS given its source: a float32 array for each.

    Raises:
      UserError: no lists of texts, or of unlike length.
    """
    sides = _check_paired(sources=sources, targets=targets)
    inputs, labels = ([[*ids, EOS_ID] for ids in tokenizer.encode(side)] for side in sides)
    return score_pairs(model, params, inputs, labels, config)


def align_texts(
    model: nn.Module,
    params: Params | Ensemble,
    tokenizer: Tokenizer,
    sources: Iterable[str],
    targets: Iterable[str],
    config: DecodingConfig,
) -> list[Links]:
    """Word alignment of each pair by the model's attention: sets of (source word, target word), from 0.

    Words are what white space separates. A pair with a side above `config.max_input` tokens has none, and
    one that the vocabulary separates otherwise, as at an invisible character, has none either.

    Raises:
      UserError: no lists of texts, or of unlike length.
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
            "%s pairs have no alignment: a side has decoding.max_input=%s tokens or more",
            f"{too_long:,}",
            f"{config.max_input:,}",
        )
    words = {i: [tokenizer.words(side) for side in encoded[i]] for i in usable}
    usable = [i for i in usable if _count_words(words[i]) == [len(side[i].split()) for side in sides]]
    if len(usable) < len(words):
        log.warning(
            "%s pairs have no alignment: the vocabulary takes other words from a side than its white space "
            "separates, as at an invisible character",
            f"{len(words) - len(usable):,}",
        )
    pairs = [[[*side, EOS_ID] for side in encoded[i]] for i in usable]
    attention = attend_pairs(model, params, [s for s, _ in pairs], [t for _, t in pairs], config)
    alignments: list[Links] = [set() for _ in encoded]
    for i, weights in zip(usable, attention, strict=True):
        alignments[i] = align_words(weights, *words[i])
    return alignments


def _count_words(numbers):
    """How many words each side has, of the number of each of its pieces."""
    return [side[-1] + 1 for side in numbers]


def _check_paired(**named):
    """Two arguments as lists of texts of one length.

    Raises:
      UserError: one is something else, a text alone for instance, or they differ in length.
    """
    (first, many), (second, other) = named.items()
    lists = check_texts(first, many), check_texts(second, other)
    many, other = map(len, lists)
    if many != other:
        raise UserError(f"Expected as many {second} as {first}, {many:,}, got {other:,}: give each its own.")
    return lists


def _split_input(tokenizer, ids, config):
    """The parts of a sentence that are translated separately: none of an empty one, else one or more."""
    longest = config.max_input - 1
    if len(ids) <= longest:
        return [ids] if ids else []
    parts = tokenizer.split(ids, longest)
    if config.overflow == "cut":
        log.warning("Cut an input of %s tokens to %s (decoding.max_input)", f"{len(ids):,}", longest)
        return parts[:1]
    log.warning("Split an input of %s tokens into %s (decoding.max_input)", f"{len(ids):,}", len(parts))
    return parts


def _rank_by_utility(texts, utility):
    utilities = expected_utilities([text for text, _ in texts], utility)
    ranked = dict(zip((text for text, _ in texts), utilities, strict=True))
    best_first = sorted(ranked.items(), key=lambda item: item[1], reverse=True)
    return [Hypothesis(text, score) for text, score in best_first]


def _join(parts, n_best):
    """The n-th hypotheses of all parts as one; an empty text for none."""
    depth = min(map(len, parts), default=0)
    joined = [
        Hypothesis(" ".join(part[n].text for part in parts), sum(part[n].score for part in parts))
        for n in range(min(depth, n_best))
    ]
    return joined or [Hypothesis("", 0.0)]
