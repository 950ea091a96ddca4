"""A tokenizer with a token that hides other tokens, as BERT's pretraining needs it."""

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any

from tfm.data.tokenizers.protocol import EOS_ID, PieceTokenizer, Tokenizer, encode_inside

MASK = "[MASK]"
MASK_PIECES = (MASK, "<mask>")  # of BERT and of RoBERTa
BLANKS_BEFORE_MASK = re.compile(rf"\s+(?={re.escape(MASK)})")


class MaskTokenizer:
    """A tokenizer in whose vocabulary one token is the mask. All other tokens come from the tokenizer.

    The mask is the piece "[MASK]" of BERT or the piece "<mask>" of RoBERTa if the tokenizer has one of them.
    Otherwise the mask is one more token after all others. In texts, it is always "[MASK]". Implements
    `Tokenizer`.

    Args:
      tokenizer: a `Tokenizer`, or a range of the size of a tokenizer that does not exist yet.

    Attributes:
      unmasked: the tokenizer without a mask, see above.
      mask_id: id of the mask.
      fingerprint: fingerprint of the tokenizer, "" for a range.
    """

    def __init__(self, tokenizer: Any):
        self.unmasked = tokenizer
        self.fingerprint: str = getattr(tokenizer, "fingerprint", "")
        has_pieces = isinstance(tokenizer, PieceTokenizer)
        pieces = tokenizer.pieces(range(len(tokenizer))) if has_pieces else []
        self.mask_id = next((pieces.index(mask) for mask in MASK_PIECES if mask in pieces), len(tokenizer))

    def __len__(self) -> int:
        return max(len(self.unmasked), self.mask_id + 1)

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """See `Tokenizer.encode`."""
        return self.unmasked.encode(texts)

    def encode_masked(self, text: str) -> list[int]:
        """Returns the ids of a text in which each "[MASK]" stands for the mask."""
        first, *others = text.split(MASK)
        parts = encode_inside(self, others)
        return self.encode([first])[0] + [i for ids in parts for i in (self.mask_id, *ids)]

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer.decode`. A mask becomes "[MASK]"."""
        groups = itertools.groupby(map(int, ids), key=self.mask_id.__eq__)
        return "".join(
            MASK * len(list(group)) if is_mask else self.unmasked.decode(list(group))
            for is_mask, group in groups
        )

    def unknown_characters(self, characters: Iterable[str]) -> list[str]:
        """See `Tokenizer.unknown_characters`."""
        return self.unmasked.unknown_characters(characters)


class MaskPieceTokenizer(MaskTokenizer):
    """A `MaskTokenizer` of parts of words. Implements `PieceTokenizer`."""

    def encode_masked(self, text: str) -> list[int]:
        """See `MaskTokenizer.encode_masked`. A blank before a mask belongs to the token that it hides."""
        return super().encode_masked(BLANKS_BEFORE_MASK.sub("", text))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """See `PieceTokenizer.pieces`."""
        ids = list(ids)
        known = self.unmasked.pieces(self._without_masks(ids))
        return [MASK if i == self.mask_id else piece for i, piece in zip(ids, known, strict=True)]

    def word_starts(self, ids: Sequence[int]) -> list[bool]:
        """See `PieceTokenizer.word_starts`. A mask begins a word."""
        starts = self.unmasked.word_starts(self._without_masks(ids))
        return [i == self.mask_id or start for i, start in zip(ids, starts, strict=True)]

    def _without_masks(self, ids: Iterable[int]) -> list[int]:
        """Returns the ids with EOS in place of masks, because the tokenizer may have no mask."""
        return [EOS_ID if i == self.mask_id else int(i) for i in ids]


def add_mask(tokenizer: Tokenizer | range) -> MaskTokenizer:
    """Returns the tokenizer with a mask: a `MaskPieceTokenizer` if its tokens are pieces."""
    if isinstance(tokenizer, PieceTokenizer):
        return MaskPieceTokenizer(tokenizer)
    return MaskTokenizer(tokenizer)
