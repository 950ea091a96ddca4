"""Captions as ids: the words of the generated captions, or the tokens of the user's own captions."""

import logging
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from tfm.data.tokenizers.protocol import Tokenizer
from tfm.errors import UserError
from tfm.systems.dalle.captions import describe_text, parse_text

CHUNK = 10_000  # captions that are encoded at a time
log = logging.getLogger(__name__)


class CaptionText(Protocol):
    """The relation between captions and the ids of a row, int [S]."""

    def parse(self, caption: str) -> np.ndarray:
        """Returns the ids of a caption.

        Raises:
          UserError: if it is no caption of the pictures.
        """
        ...

    def describe(self, ids: np.ndarray) -> str:
        """Returns the caption of ids."""
        ...

    def label(self, ids: np.ndarray) -> list[str]:
        """Returns a label for each id."""
        ...


class DigitText:
    """The captions of generated pictures, see `CaptionText`."""

    def parse(self, caption: str) -> np.ndarray:
        """See `CaptionText`."""
        return parse_text(caption)

    def describe(self, ids: np.ndarray) -> str:
        """See `CaptionText`."""
        return describe_text(ids)

    def label(self, ids: np.ndarray) -> list[str]:
        """See `CaptionText`."""
        return [describe_text(ids[index : index + 1]) for index in range(len(ids))]


class TokenText:
    """The tokens of the user's own captions, see `CaptionText`.

    After the tokens of a caption, the rest of a row has padding tokens. As in the paper, each position has
    its own padding token. Their ids come after the ids of the tokenizer. The first padding token of a row
    says that the caption ends.

    Args:
      tokenizer: the tokenizer of the captions.
      length: tokens of a row, S.

    Attributes:
      length: see above.
    """

    def __init__(self, tokenizer: Tokenizer, length: int):
        self._tokenizer = tokenizer
        self.length = length
        self._padding = np.arange(len(tokenizer), len(tokenizer) + length)

    def encode(self, captions: Iterable[str]) -> list[list[int]]:
        """Returns the ids of captions, without cutting and padding."""
        return self._tokenizer.encode(captions)

    def pad(self, ids: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of a row, int [S], and 1 for the tokens of the caption and its end, float [S].

        Args:
          ids: the tokens of a caption, at most S.
        """
        row = self._padding.copy()
        row[: len(ids)] = ids
        return row, (np.arange(self.length) <= len(ids)).astype(np.float32)

    def parse(self, caption: str) -> np.ndarray:
        """See `CaptionText`."""
        (ids,) = self.encode([caption.strip()])
        if not ids:
            raise UserError("Expected a caption to draw, got an empty text.")
        if len(ids) > self.length:
            raise UserError(
                f"Expected a caption of at most {self.length:,} tokens (model.text_length), got "
                f"{len(ids):,}. Shorten it."
            )
        return self.pad(ids)[0]

    def describe(self, ids: np.ndarray) -> str:
        """See `CaptionText`."""
        return self._tokenizer.decode(ids[ids < len(self._tokenizer)].tolist())

    def label(self, ids: np.ndarray) -> list[str]:
        """See `CaptionText`."""
        texts = [self._tokenizer.decode([int(token)]) for token in np.minimum(ids, len(self._tokenizer) - 1)]
        return [
            "-" if token >= len(self._tokenizer) else text for token, text in zip(ids, texts, strict=True)
        ]


class EncodedCaptions:
    """The tokens of the captions of pictures, in one array.

    Args:
      captions: the captions of each picture.
      text: encodes them. What does not fit into its length is cut off.

    Attributes:
      cut: number of captions that were cut.
    """

    def __init__(self, captions: Sequence[Sequence[str]], text: TokenText):
        texts = [caption for group in captions for caption in group]
        parts: list[np.ndarray] = []
        lengths: list[int] = []
        self.cut = 0
        for start in range(0, len(texts), CHUNK):
            rows = text.encode(texts[start : start + CHUNK])
            self.cut += sum(len(row) > text.length for row in rows)
            rows = [row[: text.length] for row in rows]
            lengths += map(len, rows)
            parts.append(np.array([token for row in rows for token in row], np.int32))
        self._tokens = np.concatenate([np.zeros(0, np.int32), *parts])
        self._ends = np.concatenate([[0], np.cumsum(lengths)]).astype(int)
        self._first = np.concatenate([[0], np.cumsum([len(group) for group in captions])]).astype(int)

    def count(self, picture: int) -> int:
        """Returns the number of captions of a picture."""
        return int(self._first[picture + 1] - self._first[picture])

    def read(self, picture: int, number: int) -> np.ndarray:
        """Returns the tokens of a caption of a picture, int32 [n]."""
        place = self._first[picture] + number
        return self._tokens[self._ends[place] : self._ends[place + 1]]
