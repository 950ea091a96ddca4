"""A tokenizer with a token that hides other tokens, as BERT's pretraining needs it."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from tfm.data.tokenizers.protocol import EOS_ID

MASK = "[MASK]"


class MaskTokenizer:
    """A tokenizer in whose vocabulary one token is the mask. All other tokens come from the tokenizer.

    The mask is the piece "[MASK]" if the tokenizer has this piece, as BERT's own vocabulary does. Otherwise
    the mask is one more token after all others. Implements `Tokenizer`.

    Args:
      tokenizer: a `Tokenizer`, or a range of the size of a tokenizer that does not exist yet.

    Attributes:
      mask_id: id of the mask.
      fingerprint: fingerprint of the tokenizer.
    """

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        pieces = tokenizer.pieces(range(len(tokenizer))) if hasattr(tokenizer, "pieces") else []
        self.mask_id = pieces.index(MASK) if MASK in pieces else len(tokenizer)

    def __len__(self) -> int:
        return max(len(self._tokenizer), self.mask_id + 1)

    @property
    def fingerprint(self) -> str:
        """Identifies the tokenizer."""
        return self._tokenizer.fingerprint

    def encode(self, texts: Any) -> list[list[int]]:
        """See `Tokenizer.encode`."""
        return self._tokenizer.encode(texts)

    def encode_masked(self, text: str) -> list[int]:
        """Returns the ids of a text in which each "[MASK]" stands for the mask."""
        first, *others = self.encode(text.split(MASK))
        return first + [i for ids in others for i in (self.mask_id, *ids)]

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer.decode`. A mask becomes "[MASK]"."""
        groups = itertools.groupby(map(int, ids), key=self.mask_id.__eq__)
        return "".join(
            MASK * len(list(group)) if is_mask else self._tokenizer.decode(list(group))
            for is_mask, group in groups
        )

    def unknown_characters(self, characters: Any) -> list[str]:
        """See `Tokenizer.unknown_characters`."""
        return self._tokenizer.unknown_characters(characters)


class MaskPieceTokenizer(MaskTokenizer):
    """A `MaskTokenizer` of parts of words. Implements `PieceTokenizer`."""

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """See `PieceTokenizer.pieces`."""
        known = self._tokenizer.pieces(self._without_masks(ids))
        return [MASK if i == self.mask_id else piece for i, piece in zip(ids, known, strict=True)]

    def word_starts(self, ids: Sequence[int]) -> list[bool]:
        """See `PieceTokenizer.word_starts`. A mask begins a word."""
        starts = self._tokenizer.word_starts(self._without_masks(ids))
        return [i == self.mask_id or start for i, start in zip(ids, starts, strict=True)]

    def _without_masks(self, ids: Iterable[int]) -> list[int]:
        """Returns the ids with EOS in place of masks, because the tokenizer may have no mask."""
        return [EOS_ID if i == self.mask_id else int(i) for i in ids]


def add_mask(tokenizer: Any) -> Any:
    """Returns the tokenizer with a mask: a `MaskPieceTokenizer` if its tokens are pieces."""
    return (MaskPieceTokenizer if hasattr(tokenizer, "pieces") else MaskTokenizer)(tokenizer)
