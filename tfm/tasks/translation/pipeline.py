"""Translation, scoring and alignment of texts with a model and its tokenizer."""

import logging
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfm.data.config import begin_with
from tfm.data.tokenizers.protocol import (
    EOS_ID,
    PieceTokenizer,
    encode_sides,
    number_words,
    source_tokenizer,
    split_ids,
)
from tfm.decoding.config import DecodingConfig
from tfm.decoding.mbr import expected_utilities
from tfm.decoding.protocol import Ensemble, Params
from tfm.decoding.score import attend_pairs, score_pairs
from tfm.decoding.translate import translate_ids
from tfm.errors import UserError, check_texts
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


class TextTranslation:
    """Translates, scores and aligns texts with a model and its tokenizer.

    The model may read and predict texts in a form that differs from the user's texts. A
    subclass for such a model overrides `read_source`, `read_target` and `write_target`.

    Attributes:
      model: a `tfm.decoding.protocol.SequenceToSequence`.
      tokenizer: tokenizer of the model.
      config: a config whose section `decoding` is a `DecodingConfig`.
      source_prefix, target_prefix, tags: see `tfm.data.config.PairsConfig`.
    """

    model: Any
    tokenizer: PieceTokenizer
    config: Any
    source_prefix: str = ""
    target_prefix: str = ""
    tags: tuple[str, ...] = ()

    def read_source(self, text: str) -> str:
        """Returns the text that the encoder reads for a source text of the user."""
        return begin_with(self.source_prefix, text)

    def read_target(self, text: str) -> str:
        """Returns the text that the decoder predicts for a target text of the user."""
        return begin_with(self.target_prefix, text)

    def write_target(self, source: str, text: str) -> str:
        """Returns the target text of the user for a text that the decoder predicts.

        Args:
          source: a result of `read_source`.
          text: a prediction, or a reference of the data.
        """
        del source
        return text.removeprefix(f"{self.target_prefix} ").lstrip()

    def find_lead(self, source: str) -> str:
        """Returns the text with which each part of a split source text begins: its tag or `source_prefix`."""
        return next((tag for tag in self.tags if source.startswith(tag)), self.source_prefix)

    def forced_ids(self) -> list[int]:
        """Returns the ids of `target_prefix`. Every prediction begins with them."""
        return self.tokenizer.encode([self.target_prefix])[0] if self.target_prefix else []

    def translate(
        self,
        params: Params | Ensemble,
        sentences: Iterable[str],
        decoding: DecodingConfig | None = None,
        *,
        start_index: int = 0,
    ) -> list[str]:
        """Returns the best translation of each text. See `hypotheses`."""
        hypotheses = self.hypotheses(params, sentences, decoding, start_index=start_index)
        return [best[0].text for best in hypotheses]

    def hypotheses(
        self,
        params: Params | Ensemble,
        sentences: Iterable[str],
        decoding: DecodingConfig | None = None,
        *,
        n_best: int = 1,
        prefixes: Iterable[str] | None = None,
        phrases: Sequence[Sequence[str]] | None = None,
        start_index: int = 0,
    ) -> list[list[Hypothesis]]:
        """Translates texts.

        The translation of an empty text is empty. An input with `decoding.max_input` tokens or more is split
        or cut, with a warning. The n-th best translation of a split input joins the n-th best translations of
        its parts. Its score is the sum of their scores, which are expected utilities for samples and
        log-probabilities otherwise.

        Args:
          params: parameters of the model, or a tuple of the parameters of several models.
          sentences: texts.
          decoding: the search; None uses the search of the config.
          n_best: maximum number of translations of each text. Equal samples count as one translation, so a
            list of samples can be shorter.
          prefixes: texts that the predictions of the decoder must begin with, one for each sentence, or None.
            The prefix of a split input applies to its first part.
          phrases: for each text, phrases that its translations must contain, or None. Only for beam search.
            The phrases of a split input apply to its first part.
          start_index: index of the first text. The random numbers of a sample depend on the index of its
            text, so chunks of a longer input need the index at which they begin.

        Returns:
          A list of `Hypothesis` for each sentence, best first. Each list has at least one element.

        Raises:
          UserError: if an argument is not a list of texts, `prefixes` and `sentences` differ in length, or
            `n_best` is larger than the beam or the number of samples, or there are phrases without a beam
            search.
        """
        if prefixes is None:
            sentences = check_texts("sentences", sentences)
        else:
            sentences, prefixes = _check_paired(sentences=sentences, prefixes=prefixes)
        if phrases is not None and len(phrases) != len(sentences):
            raise UserError(f"Expected phrases for {len(sentences):,} sentences, got {len(phrases):,} lists.")
        sources = [self.read_source(text.strip()) for text in sentences]  # stripped like the data
        decoding = decoding or self.config.decoding
        predictions = self.predict(params, sources, decoding, n_best, prefixes, start_index, phrases)
        return [
            [Hypothesis(self.write_target(source, text), score) for text, score in best]
            for source, best in zip(sources, predictions, strict=True)
        ]

    def predict(
        self,
        params: Params | Ensemble,
        sources: Sequence[str],
        decoding: DecodingConfig,
        n_best: int = 1,
        prefixes: Sequence[str] | None = None,
        start_index: int = 0,
        phrases: Sequence[Sequence[str]] | None = None,
    ) -> list[list[Hypothesis]]:
        """Returns hypotheses in the form that the decoder predicts, for results of `read_source`."""
        tokenizer, forced = source_tokenizer(self.tokenizer), self.forced_ids()
        lead_texts = list(map(self.find_lead, sources))
        leads = {text: tokenizer.encode([text])[0] for text in set(lead_texts)}
        parts = [
            (i, number, [*leads[lead_texts[i]], *part] if number else part)
            for i, ids in enumerate(tokenizer.encode(sources))
            for number, part in enumerate(_split_input(tokenizer, ids, decoding, len(leads[lead_texts[i]])))
        ]
        begins: list[list[int]] | None = [forced for _ in parts] if forced else None
        if prefixes is not None:
            encoded = self.tokenizer.encode(prefixes)
            begins = [forced + encoded[i] if number == 0 else forced for i, number, _ in parts]
        wanted = None
        if phrases is not None and any(phrases):
            phrases = [check_texts("phrases", of_text or ()) for of_text in phrases]
            wanted = [[] if number else self.tokenizer.encode(phrases[i]) for i, number, _ in parts]
        inputs = [[*part, EOS_ID] for _, _, part in parts]
        indices = [(start_index + i, number) for i, number, _ in parts]
        outputs = translate_ids(
            self.model,
            params,
            inputs,
            decoding,
            n_best=n_best,
            prefixes=begins,
            phrases=wanted,
            indices=indices,
        )
        predictions: list[list[list[Hypothesis]]] = [[] for _ in sources]
        for (i, _, _), hypotheses in zip(parts, outputs, strict=True):
            texts = [
                Hypothesis(self.tokenizer.decode(ids[len(forced) :]), score) for ids, score in hypotheses
            ]
            predictions[i].append(_rank_by_utility(texts, decoding.utility) if decoding.samples else texts)
        return [join_parts(of_parts, n_best) for of_parts in predictions]

    def score(
        self, params: Params | Ensemble, sources: Iterable[str], targets: Iterable[str]
    ) -> list[np.ndarray]:
        """Computes the log-probabilities of the pieces and the EOS of each target text, given its source.

        Returns:
          A float32 array [pieces + 1] for each pair.

        Raises:
          UserError: if `sources` and `targets` are not lists of texts with equal lengths.
        """
        sources, targets = _check_paired(sources=sources, targets=targets)
        sides = self.read_pairs(sources, targets)
        inputs, labels = ([[*ids, EOS_ID] for ids in side] for side in encode_sides(self.tokenizer, *sides))
        return score_pairs(self.model, params, inputs, labels, self.config.decoding)

    def align(self, params: Params | Ensemble, sources: Iterable[str], targets: Iterable[str]) -> list[Links]:
        """Aligns the words of each pair by the attention of the model.

        Words are separated by white space. The alignment of a pair is empty if a side is empty or, including
        EOS, longer than `decoding.max_input` tokens, or if the text that the model reads differs in its words
        from the user's text, for example because the vocabulary splits it at an invisible character.

        Returns:
          For each pair a set of (source word, target word), counted from 0.

        Raises:
          UserError: if `sources` and `targets` are not lists of texts with equal lengths.
        """
        sides, decoding = _check_paired(sources=sources, targets=targets), self.config.decoding
        read = self.read_pairs(*sides)
        encoded = list(zip(*encode_sides(self.tokenizer, *read), strict=True))
        longest = np.array([max(map(len, pair)) for pair in encoded], int)
        too_long = int((longest >= decoding.max_input).sum())
        if too_long:
            log.warning(
                "%s pairs have no alignment, because a side has decoding.max_input=%s tokens or more",
                f"{too_long:,}",
                f"{decoding.max_input:,}",
            )
        tokenizers = source_tokenizer(self.tokenizer), self.tokenizer
        words = {
            i: [number_words(*side) for side in zip(tokenizers, pair, strict=True)]
            for i, pair in enumerate(encoded)
            if all(pair) and longest[i] < decoding.max_input
        }
        usable = [
            i
            for i, numbers in words.items()
            if [side[-1] + 1 for side in numbers] == [len(side[i].split()) for side in sides]
        ]
        if len(usable) < len(words):
            log.warning(
                "%s pairs have no alignment, because the model reads other words than white space separates, "
                "for example in data.source_prefix or at an invisible character",
                f"{len(words) - len(usable):,}",
            )
        inputs, labels = ([[*encoded[i][side], EOS_ID] for i in usable] for side in (0, 1))
        attention = attend_pairs(self.model, params, inputs, labels, decoding)
        alignments: list[Links] = [set() for _ in encoded]
        for i, weights in zip(usable, attention, strict=True):
            alignments[i] = align_words(weights, *words[i])
        return alignments

    def read_pairs(self, sources: Sequence[str], targets: Sequence[str]) -> tuple[list[str], list[str]]:
        """Returns the texts of both sides in the form that the model reads and predicts."""
        return [self.read_source(text) for text in sources], [self.read_target(text) for text in targets]


def _check_paired(**named: Iterable[str]) -> tuple[list[str], list[str]]:
    """Returns two arguments, given by name, as lists of texts with equal lengths.

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


def _split_input(
    tokenizer: PieceTokenizer, ids: list[int], config: DecodingConfig, reserved: int = 0
) -> list[list[int]]:
    """Returns the parts of a sentence that are translated separately. An empty sentence has no parts.

    If there are several parts, each leaves space for `reserved` tokens.
    """
    longest = config.max_input - 1
    if len(ids) <= longest:
        return [ids] if ids else []
    parts = split_ids(tokenizer, ids, max(longest - reserved, 1))
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


def join_parts(parts: list[list[Hypothesis]], n_best: int) -> list[Hypothesis]:
    """Joins the n-th best hypotheses of all parts for each n. Without parts, the only one is empty.

    A part without a translation adds no blank.
    """
    depth = min(map(len, parts), default=0)
    joined = [
        Hypothesis(
            _join_texts([part[n].text for part in parts if part[n].text]),
            sum(part[n].score for part in parts),
        )
        for n in range(min(depth, n_best))
    ]
    return joined or [Hypothesis("", 0.0)]


def _join_texts(texts: Sequence[str]) -> str:
    """Joins texts with blanks, except between two wide characters, as in Chinese and Japanese."""
    joined = "".join(texts[:1])
    for text in texts[1:]:
        is_wide = all(unicodedata.east_asian_width(letter) in "WF" for letter in (joined[-1], text[0]))
        has_blanks = any("\uac00" <= letter <= "\ud7a3" for letter in (joined[-1], text[0]))  # Korean
        joined += text if is_wide and not has_blanks else f" {text}"
    return joined
