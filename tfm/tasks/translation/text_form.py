"""The form in which a translation model reads and predicts texts, as training has read them."""

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tfm.data.config import begin_with
from tfm.data.source import add_prefix, clean_line
from tfm.data.tokenizers.protocol import PieceTokenizer, source_tokenizer
from tfm.tasks.translation.text_warnings import TextWarnings


class EncodedText(NamedTuple):
    """The ids of a text in the form of a model, without EOS.

    Attributes:
      ids: the ids.
      lead: ids of the tag or the prefix at the beginning of the text. If the text is split, all parts begin
        with them.
      added: number of ids at the beginning that encode no word of the user's text.
    """

    ids: list[int]
    lead: list[int]
    added: int


class TextForm:
    """Encodes texts of the user in the form of a model, and decodes its predictions.

    A text is one line without white space at its ends, as in the training data. A source begins with its tag,
    which the user writes, or with `source_prefix`, which is added unless the text already begins with it. The
    decoder predicts `target_prefix` and a blank before each target, and decoding removes both. Therefore
    the decoded text of an encoded target is the target itself.

    A model that reads or predicts other texts than the user's has a subclass with other `read_source`,
    `read_target` and `write_target`.

    Args:
      tokenizer: tokenizer of the model.
      source_prefix, target_prefix: see `tfm.data.config.PairsConfig`.
      tags: the tags with which a source may begin. "" allows sources without a tag.
    """

    def __init__(
        self,
        tokenizer: PieceTokenizer,
        *,
        source_prefix: str = "",
        target_prefix: str = "",
        tags: Sequence[str] = (),
    ):
        self.tokenizer = tokenizer
        self.source_prefix = source_prefix
        self.target_prefix = target_prefix
        self.tags = tuple(filter(None, tags))
        self._warnings = TextWarnings(tags)

    @property
    def source_tokenizer(self) -> PieceTokenizer:
        """The tokenizer of sources."""
        return source_tokenizer(self.tokenizer)

    def read_source(self, text: str) -> str:
        """Returns the text that the encoder reads for a source text, or for a text that is already read."""
        return begin_with(self.source_prefix, clean_line(text))

    def read_target(self, text: str) -> str:
        """Returns the text that the decoder predicts for a target text."""
        return add_prefix(self.target_prefix, clean_line(text))

    def write_target(self, source: str, text: str) -> str:
        """Returns the target text of the user for a decoded text or for a reference of the data.

        Args:
          source: a result of `read_source`.
          text: a text without `target_prefix`.
        """
        del source
        return text

    def encode_sources(self, texts: Sequence[str]) -> list[EncodedText]:
        """Returns the ids of source texts. An empty text has no ids.

        Warns of texts with a missing or unknown tag, and of characters that the vocabulary lacks.
        """
        read = [self.read_source(text) for text in texts]
        lead_texts = [self._find_lead(text) for text in read]
        leads = {text: _encode_lead(self.source_tokenizer, text) for text in set(lead_texts)}
        encoded = self.source_tokenizer.encode(read)
        self._warnings.check_sources(self.source_tokenizer, read)
        return [
            EncodedText(ids, leads[lead], 0 if clean_line(text) == seen else _count_common(leads[lead], ids))
            for text, seen, lead, ids in zip(texts, read, lead_texts, encoded, strict=True)
        ]

    def encode_targets(self, texts: Sequence[str]) -> list[EncodedText]:
        """Returns the ids of target texts."""
        return self._encode_after_prefix([self.read_target(text) for text in texts])

    def encode_beginnings(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids that predictions must begin with, for texts that targets begin with.

        An empty text stands for any beginning, so its ids are the ids of `target_prefix`.
        """
        read = [add_prefix(self.target_prefix, clean_line(text)) for text in texts]
        return [text.ids for text in self._encode_after_prefix(read)]

    def encode_phrases(self, texts: Iterable[str]) -> list[list[int]]:
        """Returns the ids of phrases within a target, without empty phrases."""
        phrases = filter(None, map(clean_line, texts))
        read = [add_prefix(self.target_prefix, text) for text in phrases]
        return [text.ids[text.added :] for text in self._encode_after_prefix(read)]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of predicted ids without `target_prefix`."""
        return self.tokenizer.decode(ids[_count_common(self._target_lead, ids) :]).strip()

    def _encode_after_prefix(self, texts: Sequence[str]) -> list[EncodedText]:
        """Returns the ids of texts that begin with `target_prefix`."""
        lead = self._target_lead
        return [EncodedText(ids, lead, _count_common(lead, ids)) for ids in self.tokenizer.encode(texts)]

    @functools.cached_property
    def _target_lead(self) -> list[int]:
        """The ids of `target_prefix`, with which every prediction begins."""
        return _encode_lead(self.tokenizer, self.target_prefix)

    def _find_lead(self, source: str) -> str:
        """Returns the tag or `source_prefix` with which a result of `read_source` begins, otherwise ""."""
        first_word = source.partition(" ")[0]
        return first_word if first_word in self.tags else self.source_prefix


def _encode_lead(tokenizer: PieceTokenizer, text: str) -> list[int]:
    """Returns the ids of a tag or a prefix. "" has none, even if the tokenizer adds a blank to each text."""
    return tokenizer.encode([text])[0] if text else []


def _count_common(lead: Sequence[int], ids: Sequence[int]) -> int:
    """Returns the number of ids at the beginning that both lists have."""
    count = 0
    for expected, actual in zip(lead, ids, strict=False):
        if expected != actual:
            break
        count += 1
    return count
