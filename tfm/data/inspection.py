"""What is in a split: counts, lengths, characters, duplicates, overlap with training, and hints.

A split is read once, some rows at a time. Held are a count for each character and length, and a
hash of 8 bytes for each source and each row: of 10**8 different rows two have the same with a probability of
0.0003.
"""

import array
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfm.data.function_words import WORDS, count_function_words, guess_language
from tfm.data.source import CHUNK_ROWS, read_in_chunks

SAMPLED = 20_000  # rows whose words are looked at, evenly spaced
SHOWN = 20  # characters listed
RARE = 5  # a character that occurs fewer times is rare
MUCH = 0.01  # a fraction of the rows that is worth a hint
PROGRESS = 10  # seconds between two lines of progress
log = logging.getLogger(__name__)


class Side(NamedTuple):
    """The texts of one side of a split.

    Attributes:
      language: as the config has it; "" of documents.
      empty: texts without a character.
      words: between white space.
      characters: of all texts.
      distinct: different characters.
      longest: (row, counted from 1, its characters) of the longest text.
      histogram: texts by length; see `make_histogram`.
      unit: of the histogram, "tokens" with EOS, or "words".
      rare: (character, how often) of those that occur fewer than 5 times, at most 20 of them.
      rare_count: how many such characters there are.
      unknown: the same of characters that the tokenizer has no piece for; None without a tokenizer.
      unknown_count: how many there are.
      shares: language -> fraction of its function words in a sample.
    """

    language: str
    empty: int
    words: int
    characters: int
    distinct: int
    longest: tuple[int, int]
    histogram: dict[str, int]
    unit: str
    rare: list[tuple[str, int]]
    rare_count: int
    unknown: list[tuple[str, int]] | None
    unknown_count: int | None
    shares: dict[str, float]


class Split(NamedTuple):
    """A split.

    Attributes:
      name: of the split.
      rows: pairs or documents.
      sides: source and target, or the documents alone.
      identical: pairs whose sides are equal.
      duplicates: rows that an earlier row equals.
      ambiguous: sources with more than one target.
      overlap: "rows" and "sources" of this split that are also in the training split; None of that split
        itself, or where it was not read.
      swapped: (looked at, pairs whose sides look like each other's language) of a sample.
      batching: shapes, batches, rows left out and padding; None without a tokenizer.
    """

    name: str
    rows: int
    sides: list[Side]
    identical: int
    duplicates: int
    ambiguous: int
    overlap: dict[str, int] | None
    swapped: tuple[int, int]
    batching: dict[str, Any] | None


class Hashes(NamedTuple):
    """uint64 arrays of a split: of its rows, and of the texts of its first side."""

    rows: np.ndarray
    sources: np.ndarray


class SplitReader:
    """Collects what there is to know of a split while its rows are read.

    Args:
      languages: of the sides; ("",) of documents.
      stride: every so many-th row is in the sample.
    """

    def __init__(self, languages: Sequence[str], stride: int = 1):
        self._languages, self._stride = languages, stride
        self._row_hashes, self._source_hashes = array.array("Q"), array.array("Q")
        self._characters: list[Counter[str]] = [Counter() for _ in languages]
        self._word_counts: list[Counter[int]] = [Counter() for _ in languages]
        self._function_words: list[Counter[str]] = [Counter() for _ in languages]
        self._sampled_words = [0 for _ in languages]
        self._longest = [(0, 0) for _ in languages]
        self._rows = self._identical = self._guessed = self._swapped = 0

    def add(self, rows: Sequence[tuple[str, ...]]) -> None:
        """The next rows."""
        for characters, texts in zip(self._characters, zip(*rows, strict=True), strict=True):
            characters.update("".join(texts))  # at once: three times as fast as one by one
        for texts in rows:
            hashes = [hash_text(text) for text in texts]
            self._row_hashes.append(hash_text(" ".join(map(str, hashes))))
            self._source_hashes.append(hashes[0])
            self._identical += len(texts) > 1 and texts[0] == texts[1] != ""
            if self._rows % self._stride == 0:
                self._sample(texts)
            self._rows += 1
            for side, text in enumerate(texts):
                self._word_counts[side][len(text.split())] += 1
                if len(text) > self._longest[side][1]:
                    self._longest[side] = self._rows, len(text)

    def hashes(self) -> Hashes:
        """Those of the rows so far."""
        return Hashes(*(np.array(each, np.uint64) for each in (self._row_hashes, self._source_hashes)))

    def summarize(
        self, name: str, training: Hashes | None, lengths: np.ndarray | None, tokenizer: Any, batching: Any
    ) -> Split:
        """The split.

        Args:
          name: of the split.
          training: hashes of the training split; None for that itself, or where it was not read.
          lengths: int array [rows, sides] of tokens; None without a tokenizer.
          tokenizer: knows its `unknown_characters`; None for none.
          batching: see `Split`.
        """
        hashes = self.hashes()
        sides = [self._summarize_side(side, lengths, tokenizer) for side in range(len(self._languages))]
        return Split(
            name,
            self._rows,
            sides,
            self._identical,
            count_duplicates(hashes.rows),
            count_ambiguous(hashes),
            training and find_overlap(hashes, training),
            (self._guessed, self._swapped),
            batching,
        )

    def _sample(self, texts):
        guesses = []
        for side, text in enumerate(texts):
            counts, words = count_function_words(text)
            self._function_words[side].update(counts)
            self._sampled_words[side] += words
            guesses.append(guess_language(counts))
        if len(texts) > 1:
            self._guessed += all(guesses)
            self._swapped += guesses == self._languages[::-1]

    def _summarize_side(self, side, lengths, tokenizer):
        characters, words = self._characters[side], self._word_counts[side]
        sampled = max(self._sampled_words[side], 1)
        rare = [each for each in reversed(characters.most_common()) if each[1] < RARE]
        unknown = None
        if tokenizer is not None:
            missing = tokenizer.unknown_characters(characters)
            unknown = Counter({each: characters[each] for each in missing}).most_common()
        return Side(
            self._languages[side],
            words[0],
            sum(length * count for length, count in words.items()),
            characters.total(),
            len(characters),
            self._longest[side],
            make_histogram(words if lengths is None else Counter(lengths[:, side].tolist())),
            "words" if lengths is None else "tokens",
            rare[:SHOWN],
            len(rare),
            unknown and unknown[:SHOWN],
            None if unknown is None else len(unknown),
            {language: self._function_words[side][language] / sampled for language in WORDS},
        )


def read_split(source: Any, languages: Sequence[str], show: Callable[[str], None]) -> SplitReader:
    """A reader that has all rows of a source.

    Args:
      source: see `tfm.data.source`.
      languages: of the sides.
      show: gets a line of progress every ten seconds.
    """
    reader = SplitReader(list(languages), max(1, -(-len(source) // SAMPLED)))
    began = told = time.monotonic()
    done = 0
    for rows in read_in_chunks(source, CHUNK_ROWS):
        reader.add(rows)
        done += len(rows)
        now = time.monotonic()
        if now - told > PROGRESS:
            told = now
            show(f"Read {done:,} of {len(source):,} rows ({done / (now - began):,.0f} a second)")
    return reader


def hash_text(text: str) -> int:
    """64 bits of BLAKE2b."""
    content = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def count_duplicates(hashes: np.ndarray) -> int:
    """How many have an equal one before them."""
    return len(hashes) - len(np.unique(hashes))


def count_ambiguous(hashes: Hashes) -> int:
    """Sources in more than one different row."""
    _, first = np.unique(hashes.rows, return_index=True)
    _, counts = np.unique(hashes.sources[first], return_counts=True)
    return int((counts > 1).sum())


def find_overlap(hashes: Hashes, training: Hashes) -> dict[str, int]:
    """{"rows", "sources"}: how many of a split are also in the training split."""
    return {
        name: int(np.isin(own, other).sum())
        for name, own, other in zip(Hashes._fields, hashes, training, strict=True)
    }


def make_histogram(lengths: Counter[int]) -> dict[str, int]:
    """How many texts there are of each range of lengths: 0, 1, 2-3, 4-7, 8-15, ..., up to the longest."""
    bins: Counter[int] = Counter()
    for length, count in lengths.items():
        bins[int(length).bit_length()] += count
    return {_name_range(bits): bins[bits] for bits in range(max(bins, default=0) + 1)}


def _name_range(bits):
    first, last = (1 << bits) // 2, (1 << bits) - 1
    return f"{first}" if first == last else f"{first}-{last}"


def find_hints(split: Split) -> list[str]:
    """What in a split may be a mistake, a sentence each."""
    return [*_find_language_hints(split), *_find_row_hints(split)]


def _find_language_hints(split):
    for side, name in zip(split.sides, ("source", "target"), strict=False):
        best = max(side.shares, key=side.shares.get)
        if side.language in side.shares and side.shares[best] > max(2 * side.shares[side.language], 0.05):
            yield (
                f"the {name} looks like '{best}' ({_percent(side.shares[best])} of its words are function "
                f"words of it) and is '{side.language}' in the config: are the languages swapped?"
            )
    looked_at, swapped = split.swapped
    if looked_at and swapped > MUCH * looked_at:
        yield f"{_percent(swapped / looked_at)} of {looked_at:,} pairs look like source and target swapped"


def _find_row_hints(split):
    counts = {
        "are copies: source and target are equal": split.identical,
        "repeat an earlier one": split.duplicates,
        "have an empty side": max(side.empty for side in split.sides),
    }
    for what, count in counts.items():
        if count > MUCH * split.rows:
            yield f"{_percent(count / split.rows)} of the rows {what}"
    if split.overlap and split.overlap["rows"]:
        yield f"{split.overlap['rows']:,} rows are also in the training split: scores on them are too good"
    for side in split.sides:
        if side.unknown_count:
            yield f"{side.unknown_count:,} characters of '{side.language}' are unknown to the tokenizer"


def _percent(fraction):
    return f"{100 * fraction:.1f} %"
