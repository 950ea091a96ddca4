"""Conversion between the texts of a user and the texts that a translation model was trained on."""

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tfm.data.config import begin_with
from tfm.data.source import add_prefix, clean_line
from tfm.data.tokenizers.protocol import PieceTokenizer, source_tokenizer
from tfm.tasks.translation.text_warnings import TextWarnings


class EncodedText(NamedTuple):
    """The token ids of a text, without EOS.

    Attributes:
      ids: the token ids.
      lead: the ids of the tag or the prefix that the text begins with. If a text is split, each part begins
        with these ids.
      added: the number of ids at the beginning that were added to the text of the user.
    """

    ids: list[int]
    lead: list[int]
    added: int


class TextForm:
    """Encodes the texts of a user for a model, and decodes the predictions of the model.

    Every text becomes one line without white space at its ends, like the texts of the training data. A source
    begins either with a tag or with `source_prefix`. The user writes the tag, and this class adds the prefix
    unless the text already begins with it. The decoder predicts `target_prefix` and a blank before each
    target. Decoding removes both, so encoding and decoding a target returns the target.

    Subclasses override `read_source`, `read_target` and `write_target` if the model reads or predicts another
    notation than the user writes.

    Args:
      tokenizer: tokenizer of the model.
      source_prefix, target_prefix: see `tfm.data.config.PairsConfig`.
      tags: the tags that a source may begin with. "" among them means that a source needs no tag.
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
        """Returns the text that the encoder reads for a source. A result of this function stays unchanged."""
        return begin_with(self.source_prefix, clean_line(text))

    def read_target(self, text: str) -> str:
        """Returns the text that the decoder predicts for a target."""
        return add_prefix(self.target_prefix, clean_line(text))

    def write_target(self, source: str, text: str) -> str:
        """Returns a target in the notation of the user.

        Args:
          source: the source of the target, as a result of `read_source`.
          text: a result of `decode`, or a reference of the data.
        """
        del source
        return text

    def encode_sources(self, texts: Sequence[str]) -> list[EncodedText]:
        """Returns the ids of sources. An empty text has no ids.

        Logs warnings about missing and unknown tags, and about characters that the vocabulary lacks.
        """
        read_texts = [self.read_source(text) for text in texts]
        encoded = self.source_tokenizer.encode(read_texts)
        self._warnings.check_sources(self.source_tokenizer, read_texts)
        lead_texts = [self._find_lead(text) for text in read_texts]
        leads = {text: _encode_lead(self.source_tokenizer, text) for text in set(lead_texts)}
        encoded_texts = []
        for text, read_text, lead_text, ids in zip(texts, read_texts, lead_texts, encoded, strict=True):
            lead = leads[lead_text]
            is_unchanged = clean_line(text) == read_text
            encoded_texts.append(EncodedText(ids, lead, 0 if is_unchanged else _count_common(lead, ids)))
        return encoded_texts

    def encode_targets(self, texts: Sequence[str]) -> list[EncodedText]:
        """Returns the ids of targets."""
        return self._encode_after_prefix([self.read_target(text) for text in texts])

    def encode_beginnings(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids that a prediction must begin with, for the beginnings of targets.

        An empty beginning allows any target, so only the ids of `target_prefix` are forced.
        """
        prefixed_texts = [add_prefix(self.target_prefix, clean_line(text)) for text in texts]
        return [text.ids for text in self._encode_after_prefix(prefixed_texts)]

    def encode_phrases(self, texts: Iterable[str]) -> list[list[int]]:
        """Returns the ids of phrases that occur within a target. Empty phrases are left out."""
        phrases = filter(None, map(clean_line, texts))
        prefixed_texts = [add_prefix(self.target_prefix, text) for text in phrases]
        return [text.ids[text.added :] for text in self._encode_after_prefix(prefixed_texts)]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of predicted ids, without `target_prefix`."""
        return self.tokenizer.decode(ids[_count_common(self._target_lead, ids) :]).strip()

    def _encode_after_prefix(self, texts: Sequence[str]) -> list[EncodedText]:
        """Returns the ids of texts that already begin with `target_prefix`."""
        lead = self._target_lead
        return [EncodedText(ids, lead, _count_common(lead, ids)) for ids in self.tokenizer.encode(texts)]

    @functools.cached_property
    def _target_lead(self) -> list[int]:
        """The ids of `target_prefix`. Every prediction begins with them."""
        return _encode_lead(self.tokenizer, self.target_prefix)

    def _find_lead(self, source: str) -> str:
        """Returns the tag that a result of `read_source` begins with, or `source_prefix` without a tag."""
        first_word = source.partition(" ")[0]
        return first_word if first_word in self.tags else self.source_prefix


def _encode_lead(tokenizer: PieceTokenizer, text: str) -> list[int]:
    """Returns the ids of a tag or a prefix. An empty text has no ids, even if the tokenizer adds a blank."""
    return tokenizer.encode([text])[0] if text else []


def _count_common(lead: Sequence[int], ids: Sequence[int]) -> int:
    """Returns the number of ids in the longest common beginning of two lists."""
    count = 0
    for expected, actual in zip(lead, ids, strict=False):
        if expected != actual:
            break
        count += 1
    return count
