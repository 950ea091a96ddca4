"""The interface of a tokenizer, the ids of its special tokens, and functions that all tokenizers share."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from tfm.errors import UserError

PAD_ID, BOS_ID, EOS_ID = range(3)
UNKNOWN_PIECE = "<unk>"  # name of the unknown piece in SentencePiece and in most vocabularies of words
SENTENCE_ENDS = (".", "!", "?", ";", "\u0964", "\u061f")  # before a word; also of Hindi and Arabic
WIDE_ENDS = ("\u3002", "\uff01", "\uff1f", "\uff61")  # of Chinese and Japanese, which have no spaces
CLOSING = ("\u300d", "\u300f", "\u201d", "\uff09", *WIDE_ENDS)  # belong to the sentence before them
CONTEXT = "\U00013000"  # a letter of a dead script, which no vocabulary merges with the text after it


class Tokenizer(Protocol):
    """A tokenizer. Padding, BOS and EOS have the ids 0, 1 and 2, and texts never contain them.

    Attributes:
      fingerprint: identifies the tokenizer. Equal tokenizers have equal fingerprints.
    """

    fingerprint: str

    def __len__(self) -> int:
        """Returns the vocabulary size, V."""

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """Returns a list of ids, without special ids, for each text.

        Raises:
          UserError: if a text has half of a character (a lone surrogate). Arguments of a command line that
            are not UTF-8 have such halves.
        """

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of the ids before the first EOS. Skips padding and BOS."""

    def unknown_characters(self, characters: Iterable[str]) -> list[str]:
        """Returns the characters or words that have bytes or unknown pieces, as the vocabulary lacks them."""


@runtime_checkable
class PieceTokenizer(Tokenizer, Protocol):
    """A tokenizer whose tokens are parts of words, as translation needs it."""

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Returns the pieces as the tokenizer's file writes them, for display."""

    def word_starts(self, ids: Sequence[int]) -> list[bool]:
        """Returns for each id of a text whether a word begins with it."""


def source_tokenizer(tokenizer: Any) -> Any:
    """Returns the tokenizer of source texts: its attribute `source`, or else the tokenizer of both sides."""
    return getattr(tokenizer, "source", tokenizer)


def has_separate_source(tokenizer: Tokenizer) -> bool:
    """Returns whether source texts have another tokenizer than target texts."""
    return source_tokenizer(tokenizer) is not tokenizer


def encode_sides(tokenizer: Any, *sides: Iterable[str]) -> list[list[list[int]]]:
    """Returns the ids of the texts of each side: source and target, or only one side."""
    if len(sides) == 1:
        return [tokenizer.encode(sides[0])]
    sources, targets = sides
    return [source_tokenizer(tokenizer).encode(sources), tokenizer.encode(targets)]


def encode_inside(tokenizer: Tokenizer, texts: Iterable[str]) -> list[list[int]]:
    """Returns the ids of parts of a text that follow its beginning, where no tokenizer adds a blank."""
    before, *ids = tokenizer.encode([CONTEXT, *(CONTEXT + text for text in texts)])
    return [part[len(before) :] for part in ids]


def cut_at_end(ids: Iterable[int]) -> list[int]:
    """Returns the ids before the first EOS, without padding and BOS."""
    before_end = itertools.takewhile(lambda i: i != EOS_ID, map(int, ids))
    return [i for i in before_end if i not in (PAD_ID, BOS_ID)]


def require_characters(texts: Iterable[str]) -> None:
    """Checks that texts can be written as UTF-8.

    Raises:
      UserError: if a text contains half of a character (a lone surrogate).
    """
    for text in texts:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            part = ascii(text[max(error.start - 20, 0) : error.end + 20])
            message = f"Expected text, got half of a character in {part}. Convert it to UTF-8."
            raise UserError(message) from None


def number_words(tokenizer: PieceTokenizer, ids: Sequence[int]) -> list[int]:
    """Returns for each id of a text the number of its word, counted from 0."""
    starts: list[Any] = tokenizer.word_starts(ids)
    return list(itertools.accumulate([0, *map(int, starts[1:])]))[: len(ids)]


def split_ids(tokenizer: PieceTokenizer, ids: list[int], longest: int) -> list[list[int]]:
    """Splits ids without EOS into parts of at most `longest` ids.

    Each part ends after the last sentence that fits, otherwise after the last word that fits, and otherwise
    within a word.
    """
    parts = []
    while len(ids) > longest:
        head = ids[: longest + 1]
        starts, text = tokenizer.word_starts(head), tokenizer.decode(head)
        words = [i for i in range(1, longest + 1) if starts[i]]
        # A piece may be a part of a character, so only decoded texts show where a sentence ends.
        before = {i: tokenizer.decode(head[:i]) for i in range(1, longest + 1)}
        sentences = [
            i
            for i in before
            if (starts[i] and before[i].endswith(SENTENCE_ENDS))
            or (before[i].endswith(WIDE_ENDS) and not text[len(before[i]) :].startswith(CLOSING))
        ]
        end = (sentences or words or [longest])[-1]
        parts.append(ids[:end])
        ids = ids[end:]
    return [*parts, ids]
