"""Translation, scoring and alignment of texts with a model and its tokenizer."""

import logging
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfm.data.tokenizers.protocol import (
    EOS_ID,
    PieceTokenizer,
    number_words,
    split_ids,
)
from tfm.decoding.config import DecodingConfig
from tfm.decoding.mbr import expected_utilities
from tfm.decoding.protocol import Ensemble, Params
from tfm.decoding.score import attend_pairs, score_pairs
from tfm.decoding.translate import translate_ids
from tfm.errors import UserError, check_texts
from tfm.evaluation.alignment import Links, align_words
from tfm.tasks.translation.text_form import EncodedText, TextForm
from tfm.tasks.translation.text_warnings import warn_of_empty_translations

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

    Attributes:
      model: a `tfm.decoding.protocol.SequenceToSequence`.
      form: the form in which the model reads and predicts texts, with the tokenizer.
      config: a config whose section `decoding` is a `DecodingConfig`.
    """

    model: Any
    form: TextForm
    config: Any

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
          n_best: maximum number of translations of each text. Equal texts count as one translation, with the
            best score, so a list can be shorter.
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
        sources = [self.form.read_source(text) for text in sentences]
        _warn_of_ignored("prefixes", sources, prefixes or ())
        _warn_of_ignored("phrases", sources, phrases or ())
        decoding = decoding or self.config.decoding
        predictions = self.predict(params, sources, decoding, n_best, prefixes, start_index, phrases)
        written = [
            [Hypothesis(self.form.write_target(source, text), score) for text, score in best]
            for source, best in zip(sources, predictions, strict=True)
        ]
        warn_of_empty_translations(sources, [best[0].text for best in written])
        return [_keep_distinct(best) for best in written]

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
        """Returns hypotheses in the form that the decoder predicts, for results of `TextForm.read_source`.

        For the arguments, the result and the errors, see `hypotheses`. The length of `prefixes` and `phrases`
        is not checked.
        """
        parts = [
            (i, number, part)
            for i, source in enumerate(self.form.encode_sources(sources))
            for number, part in enumerate(_split_input(self.form.source_tokenizer, source, decoding))
        ]
        encoded = self.form.encode_beginnings(["", *(prefixes or [])])
        forced, of_texts = encoded[0], encoded[1:]
        begins = [of_texts[i] if of_texts and number == 0 else forced for i, number, _ in parts]
        wanted = None
        if phrases is not None and any(phrases):
            phrases = [check_texts("phrases", of_text or ()) for of_text in phrases]
            wanted = [[] if number else self.form.encode_phrases(phrases[i]) for i, number, _ in parts]
        inputs = [[*part, EOS_ID] for _, _, part in parts]
        indices = [(start_index + i, number) for i, number, _ in parts]
        outputs = translate_ids(
            self.model,
            params,
            inputs,
            decoding,
            # Different pieces may be the same text, so that the search looks for more than `n_best`.
            n_best=n_best if decoding.samples or n_best <= 1 else max(n_best, decoding.beam_size),
            prefixes=begins if any(begins) or prefixes is not None else None,
            phrases=wanted,
            indices=indices,
        )
        predictions: list[list[list[Hypothesis]]] = [[] for _ in sources]
        for (i, _, _), hypotheses in zip(parts, outputs, strict=True):
            texts = [Hypothesis(self.form.decode(ids), score) for ids, score in hypotheses]
            ranked = _rank_by_utility(texts, decoding.utility) if decoding.samples else _keep_distinct(texts)
            predictions[i].append(ranked)
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
        sides = self.form.encode_sources(sources), self.form.encode_targets(targets)
        inputs, labels = ([[*text.ids, EOS_ID] for text in side] for side in sides)
        return score_pairs(self.model, params, inputs, labels, self.config.decoding)

    def align(self, params: Params | Ensemble, sources: Iterable[str], targets: Iterable[str]) -> list[Links]:
        """Aligns the words of each pair by the attention of the model.

        Words are separated by white space. The alignment of a pair is empty if a side is empty or, including
        EOS, longer than `decoding.max_input` tokens, or if the text that the model reads differs in its words
        from the user's text, for example because the vocabulary splits it at an invisible character. Warnings
        count the pairs without an alignment, except for empty sides.

        Returns:
          For each pair a set of (source word, target word), counted from 0.

        Raises:
          UserError: if `sources` and `targets` are not lists of texts with equal lengths.
        """
        sides, decoding = _check_paired(sources=sources, targets=targets), self.config.decoding
        encoded = [self.form.encode_sources(sides[0]), self.form.encode_targets(sides[1])]
        pairs = list(zip(*encoded, strict=True))
        longest = np.array([max(len(text.ids) for text in pair) for pair in pairs], int)
        too_long = int((longest >= decoding.max_input).sum())
        if too_long:
            log.warning(
                "%s pairs have no alignment, because a side has decoding.max_input=%s tokens or more",
                f"{too_long:,}",
                f"{decoding.max_input:,}",
            )
        tokenizers = self.form.source_tokenizer, self.form.tokenizer
        words = {
            i: [
                number_words(tokenizer, text.ids[text.added :])
                for tokenizer, text in zip(tokenizers, pair, strict=True)
            ]
            for i, pair in enumerate(pairs)
            if longest[i] < decoding.max_input
        }
        words = {i: numbers for i, numbers in words.items() if all(numbers)}
        usable = [
            i
            for i, numbers in words.items()
            if [side[-1] + 1 for side in numbers] == [len(side[i].split()) for side in sides]
        ]
        if len(usable) < len(words):
            log.warning(
                "%s pairs have no alignment, because the model reads other words than white space separates, "
                "for example at an invisible character",
                f"{len(words) - len(usable):,}",
            )
        inputs, labels = ([[*side[i].ids, EOS_ID] for i in usable] for side in encoded)
        attention = attend_pairs(self.model, params, inputs, labels, decoding)
        alignments: list[Links] = [set() for _ in pairs]
        for i, weights in zip(usable, attention, strict=True):
            source, target = pairs[i]
            alignments[i] = align_words(weights[target.added :, source.added :], *words[i])
        return alignments


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


def _warn_of_ignored(name: str, sources: Sequence[str], values: Sequence[Any]) -> None:
    """Warns of prefixes or phrases of empty texts."""
    count = sum(bool(value) and not source for source, value in zip(sources, values, strict=False))
    if count:
        log.warning(
            "Ignored the %s of %s empty texts, because the translation of an empty text is empty",
            name,
            f"{count:,}",
        )


def _split_input(tokenizer: PieceTokenizer, text: EncodedText, config: DecodingConfig) -> list[list[int]]:
    """Returns the parts of a source that are translated separately. An empty source has no parts.

    If there are several parts, each begins with the lead of the text.
    """
    ids, longest = text.ids, config.max_input - 1
    if len(ids) <= longest:
        return [ids] if ids else []
    first, *others = split_ids(tokenizer, ids, max(longest - len(text.lead), 1))
    parts = [first, *([*text.lead, *part] for part in others)]
    if config.overflow == "cut":
        log.warning("Cut an input of %s tokens to %s (decoding.max_input)", f"{len(ids):,}", longest)
        return parts[:1]
    log.warning("Split an input of %s tokens into %s (decoding.max_input)", f"{len(ids):,}", len(parts))
    return parts


def _keep_distinct(hypotheses: list[Hypothesis]) -> list[Hypothesis]:
    """Returns the first hypothesis of each text."""
    first: dict[str, Hypothesis] = {}
    for hypothesis in hypotheses:
        first.setdefault(hypothesis.text, hypothesis)
    return list(first.values())


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
