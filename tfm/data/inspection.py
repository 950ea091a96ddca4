"""Statistics of a split: counts, lengths, characters, duplicates, overlap with training, and hints.

A split is read once, in chunks. Only a count for each character and length, and a hash of 8 bytes for
each source and each row, stay in memory. Among 10**8 different rows, two rows have the same hash with a
probability of 0.0003.
"""

import array
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfm.data.source import CHUNK_ROWS, read_in_chunks
from tfm.data.threads import read_in_threads
from tfm.data.tokenizers.protocol import source_tokenizer
from tfm.data.tokenizers.unknown_text import UnknownCounter

MAX_SHOWN_CHARACTERS = 20
MIN_HINT_FRACTION = 0.01  # of the rows
PROGRESS_SECONDS = 10  # between two lines of progress
CHUNK_PICTURES = 256  # that are read between two looks at the clock


class Side(NamedTuple):
    """The texts of one side of a split.

    Attributes:
      language: language in the config, or "" for documents.
      empty: number of texts that are empty or only white space.
      words: number of words, separated by white space.
      characters: number of characters of all texts.
      distinct: number of different characters.
      longest: (row, counted from 1; number of characters) of the longest text.
      histogram: number of texts by length; see `make_histogram`.
      unit: unit of the lengths in the histogram: "tokens", including EOS, or "words".
      unknown: (character, count) of characters without a piece in the tokenizer, the most frequent first, at
        most 20. None without a tokenizer.
      unknown_count: number of different unknown characters. None without a tokenizer.
      unknown_words: (word, count) of words that the tokenizer does not know although it knows their
        characters, the most frequent first, at most 20. A vocabulary of whole words has such words. None
        without a tokenizer.
      unknown_word_count: number of different unknown words. None without a tokenizer.
    """

    language: str
    empty: int
    words: int
    characters: int
    distinct: int
    longest: tuple[int, int]
    histogram: dict[str, int]
    unit: str
    unknown: list[tuple[str, int]] | None
    unknown_count: int | None
    unknown_words: list[tuple[str, int]] | None
    unknown_word_count: int | None


class Split(NamedTuple):
    """The statistics of a split.

    Attributes:
      name: name of the split.
      rows: number of pairs or documents.
      sides: statistics of source and target, or of the documents.
      empty: number of rows with a side that is empty or only white space.
      identical: number of pairs whose sides are equal and not empty.
      duplicates: number of rows that repeat an earlier row.
      ambiguous: number of different sources with more than one target.
      overlap: {"rows": count, "sources": count} of this split that the training split contains as well. None
        for the training split, or if it was not read.
    """

    name: str
    rows: int
    sides: list[Side]
    empty: int
    identical: int
    duplicates: int
    ambiguous: int
    overlap: dict[str, int] | None


class Summary(NamedTuple):
    """The statistics that `tfm data` shows of a split whose examples are not texts, such as images.

    Attributes:
      name: name of the split.
      title: what the split contains, such as "12,000 images of 10 classes".
      lines: (name, text) of the lines below the title.
      values: the same statistics for JSON.
      hints: a sentence for each property that may be a mistake.
      hashes: hash of each example, uint64 [N]. Duplicates and the overlap with training are counted by them.
        None if the examples have no hashes.
    """

    name: str
    title: str
    lines: list[tuple[str, str]]
    values: dict[str, Any]
    hints: list[str]
    hashes: np.ndarray | None = None


class Hashes(NamedTuple):
    """Hashes of all rows of a split, and of the texts of their first side: uint64 arrays [rows]."""

    rows: np.ndarray
    sources: np.ndarray


class SplitReader:
    """Collects statistics of a split while its rows are read.

    Args:
      languages: languages of the sides. Documents have one side, with the language "".
      tokenizer: tokenizer whose unknown characters and words are counted, or None.
    """

    def __init__(self, languages: Sequence[str], tokenizer: Any = None):
        self._languages = list(languages)
        self._row_hashes, self._source_hashes = array.array("Q"), array.array("Q")
        self._characters: list[Counter[str]] = [Counter() for _ in languages]
        self._word_counts: list[Counter[int]] = [Counter() for _ in languages]
        tokenizers = [] if tokenizer is None else [source_tokenizer(tokenizer), tokenizer][: len(languages)]
        self._unknown = [UnknownCounter(each) for each in tokenizers]
        self._longest = [(0, 0) for _ in languages]
        self._rows = self._empty = self._identical = 0

    def add(self, rows: Sequence[tuple[str, ...]]) -> None:
        """Adds the next rows to the statistics. A row has a text for each side."""
        for characters, texts in zip(self._characters, zip(*rows, strict=True), strict=True):
            characters.update("".join(texts))  # joining the texts first is three times as fast
        for counter, texts in zip(self._unknown, zip(*rows, strict=True), strict=False):
            counter.add(texts)
        for texts in rows:
            hashes = [hash_text(text) for text in texts]
            self._row_hashes.append(hash_text(" ".join(map(str, hashes))))
            self._source_hashes.append(hashes[0])
            self._empty += not all(map(str.strip, texts))
            self._identical += len(texts) > 1 and texts[0] == texts[1] != ""
            self._rows += 1
            for side, text in enumerate(texts):
                self._word_counts[side][len(text.split())] += 1
                if len(text) > self._longest[side][1]:
                    self._longest[side] = self._rows, len(text)

    def hashes(self) -> Hashes:
        """Returns the hashes of all rows that were added so far."""
        return Hashes(np.array(self._row_hashes, np.uint64), np.array(self._source_hashes, np.uint64))

    def summarize(self, name: str, training: Hashes | None, lengths: np.ndarray | None) -> Split:
        """Returns the statistics of all rows that were added.

        Args:
          name: name of the split.
          training: hashes of the training split. None if this is the training split or if it was not read.
          lengths: number of tokens of each text, int [rows, sides]. None without a tokenizer.
        """
        hashes = self.hashes()
        different_rows, first = np.unique(hashes.rows, return_index=True)
        _, targets_of_sources = np.unique(hashes.sources[first], return_counts=True)
        overlap = training and {
            name: int(np.isin(split_hashes, training_hashes).sum())
            for name, split_hashes, training_hashes in zip(Hashes._fields, hashes, training, strict=True)
        }
        return Split(
            name,
            self._rows,
            [self._summarize_side(side, lengths) for side in range(len(self._languages))],
            self._empty,
            self._identical,
            self._rows - len(different_rows),
            int((targets_of_sources > 1).sum()),
            overlap,
        )

    def _summarize_side(self, side: int, lengths: np.ndarray | None) -> Side:
        characters, words = self._characters[side], self._word_counts[side]
        unknown = self._unknown[side].characters() if self._unknown else None
        unknown_words = self._unknown[side].words() if self._unknown else None
        return Side(
            self._languages[side],
            words[0],
            sum(length * count for length, count in words.items()),
            characters.total(),
            len(characters),
            self._longest[side],
            make_histogram(words if lengths is None else Counter(lengths[:, side].tolist())),
            "words" if lengths is None else "tokens",
            unknown and unknown[:MAX_SHOWN_CHARACTERS],
            None if unknown is None else len(unknown),
            unknown_words and unknown_words[:MAX_SHOWN_CHARACTERS],
            None if unknown_words is None else len(unknown_words),
        )


def read_split(
    source: Any, languages: Sequence[str], show: Callable[[str], None], tokenizer: Any = None
) -> SplitReader:
    """Reads all rows of a source and returns the reader with their statistics.

    Args:
      source: see `tfm.data.source`.
      languages: languages of the sides.
      show: is called with a line of progress at most every ten seconds.
      tokenizer: see `SplitReader`.
    """
    reader = SplitReader(languages, tokenizer)
    began = last_shown = time.monotonic()
    done = 0
    for rows in read_in_chunks(source, CHUNK_ROWS):
        reader.add(rows)
        done += len(rows)
        now = time.monotonic()
        if now - last_shown > PROGRESS_SECONDS:
            last_shown = now
            show(f"Read {done:,} of {len(source):,} rows ({done / (now - began):,.0f} a second)")
    return reader


def check_pictures(
    count: int, read: Callable[[int], Any], show: Callable[[str], None]
) -> tuple[np.ndarray, list[str]]:
    """Reads all pictures of a split, several at a time.

    Args:
      count: number of pictures.
      read: returns a picture by its index: a PIL image or an array.
      show: is called with a line of progress at most every ten seconds.

    Returns:
      A hash of the pixels of each picture, uint64 [N], and a message for each picture that cannot be read.
    """

    def hash_picture(index: int) -> int:
        pixels = np.asarray(read(index))
        return hash_bytes(repr(pixels.shape).encode() + pixels.tobytes())

    hashes, problems = read_in_threads(count, hash_picture, show)
    # A picture that cannot be read gets its index, so that it is no duplicate.
    numbers = [index if hashed is None else hashed for index, hashed in enumerate(hashes)]
    return np.array(numbers, np.uint64), problems


def hash_text(text: str) -> int:
    """Returns a 64-bit BLAKE2b hash of the text."""
    return hash_bytes(text.encode("utf-8", "surrogatepass"))


def hash_bytes(content: bytes) -> int:
    """Returns a 64-bit BLAKE2b hash of the content."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def make_histogram(lengths: Counter[int]) -> dict[str, int]:
    """Returns {range: number of texts} for the ranges 0, 1, 2-3, 4-7, 8-15, ..., up to the maximum length.

    Args:
      lengths: {length: number of texts}.
    """
    bins: Counter[int] = Counter()
    for length, count in lengths.items():
        bins[int(length).bit_length()] += count
    histogram = {}
    for bits in range(max(bins, default=0) + 1):
        lowest, highest = (1 << bits) // 2, (1 << bits) - 1
        histogram[f"{lowest}" if lowest == highest else f"{lowest}-{highest}"] = bins[bits]
    return histogram


def find_hints(split: Split) -> list[str]:
    """Returns a text for each property of a split that may be a mistake.

    The text has no period, such as "12.5 % of the rows repeat an earlier row". Copies, repeated rows and
    empty sides have a text only if they are more than `MIN_HINT_FRACTION` of the rows.
    """
    hints = []
    counts = {
        "are copies: source and target are equal": split.identical,
        "repeat an earlier row": split.duplicates,
        "have an empty side": split.empty,
    }
    for what, count in counts.items():
        if count > MIN_HINT_FRACTION * split.rows:
            hints.append(f"{_percent(count / split.rows)} of the rows {what}")
    if split.overlap and split.overlap["rows"]:
        hints.append(f"{split.overlap['rows']:,} rows are also in the training split, so scores are too good")
    for side in split.sides:
        text = f"'{side.language}'" if side.language else "the text"
        if side.unknown_count:
            hints.append(f"{side.unknown_count:,} characters of {text} are unknown to the tokenizer")
        if side.unknown_word_count:
            hints.append(f"{side.unknown_word_count:,} words of {text} are unknown to the tokenizer")
    return hints


def compare_with_training(summary: Summary, training: Summary | None) -> Summary:
    """Adds the number of duplicates in a split, and of its examples that the training split contains as well.

    Returns the summary itself if it has no hashes. Without `training`, the value "overlap" is None.

    Args:
      summary: summary of the split.
      training: summary of the training split. None if this is the training split or if it was not read.
    """
    if summary.hashes is None:
        return summary
    lines, values, hints = list(summary.lines), dict(summary.values), list(summary.hints)
    values["duplicates"] = len(summary.hashes) - len(np.unique(summary.hashes))
    lines.append(("duplicates", f"{values['duplicates']:,} examples equal an earlier example"))
    values["overlap"] = None
    if training is not None and training.hashes is not None:
        values["overlap"] = int(np.isin(summary.hashes, training.hashes).sum())
        lines.append(("overlap", f"{values['overlap']:,} examples are also in the training split"))
    if values["overlap"]:
        hints.append(f"{values['overlap']:,} examples are also in the training split, so scores are too good")
    return summary._replace(lines=lines, values=values, hints=hints)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"
