"""Rows of pieces of text: one piece in each row of similar length, or several packed into one row.

A piece is a sentence pair, or a part of a document.
"""

import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

OPEN_ROWS = 32  # rows that packing tries before it closes the fullest row
PACKED_AT_ONCE = 100_000  # pieces turned into Python numbers at a time
MIN_BUCKET = 8


class Rows(NamedTuple):
    """All rows of an epoch, ordered by width.

    Attributes:
      pieces: int array, numbers of pieces in the order of rows.
      ends: int array; row r holds pieces[ends[r - 1] : ends[r]].
      widths: list of (width, number of rows of this width).
    """

    pieces: np.ndarray
    ends: np.ndarray
    widths: list[tuple[int, int]]

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the pieces of some rows, one row after the other, and the number of pieces of each row."""
        starts = find_starts(self.ends, rows)
        counts = self.ends[rows] - starts
        return self.pieces[concatenate_ranges(starts, counts)], counts


def bucket(pieces: np.ndarray, lengths: np.ndarray, max_length: int) -> Rows:
    """Gives each piece a row of the narrowest width that holds its longest side."""
    widths = list_widths(max_length)
    numbers = np.searchsorted(widths, lengths[pieces].max(1))
    counts = np.bincount(numbers, minlength=len(widths))
    ordered = pieces[np.argsort(numbers, kind="stable")]
    return Rows(ordered, np.arange(1, len(ordered) + 1), list(zip(widths, counts.tolist(), strict=True)))


def pack(pieces: np.ndarray, lengths: np.ndarray, width: int) -> Rows:
    """Packs pieces into rows: each piece goes into the first open row with room for all its sides.

    This is first-fit packing with at most `OPEN_ROWS` open rows. If a piece fits into none of them, it opens
    a new row. Before that, the fullest row is closed if the maximum is reached.

    Args:
      pieces: numbers of pieces, in the order in which they are packed.
      lengths: int [pieces, sides], tokens of each piece on its one side or two sides. No piece may be longer
        than `width`.
      width: tokens of a row, on each side.

    Returns:
      The rows in the order in which they were closed. All have the same width.
    """
    packed, counts = array.array("q"), array.array("q")
    opened: list[list[Any]] = []

    def close(row):
        opened.remove(row)
        counts.append(len(row[2]))
        packed.extend(row[2])

    for first in range(0, len(pieces), PACKED_AT_ONCE):
        block = pieces[first : first + PACKED_AT_ONCE]
        sides = lengths[block][:, [0, -1]].T.tolist()
        for piece, source, target in zip(block.tolist(), *sides, strict=True):
            for row in opened:
                if row[0] >= source and row[1] >= target:
                    break
            else:
                if len(opened) == OPEN_ROWS:
                    close(min(opened, key=lambda row: row[0] + row[1]))
                row = [width, width, []]  # room left of each side, pieces
                opened.append(row)
            row[0] -= source
            row[1] -= target
            row[2].append(piece)
    for row in list(opened):
        close(row)
    ends = np.cumsum(np.frombuffer(counts, np.int64))
    return Rows(np.frombuffer(packed, np.int64), ends, [(width, len(ends))])


def join_rows(parts: Sequence[Rows]) -> Rows:
    """Concatenates rows of several corpora. The result has no widths."""
    before = np.cumsum([0, *(len(part.pieces) for part in parts)])
    ends = [part.ends + pieces for part, pieces in zip(parts, before[:-1], strict=True)]
    return Rows(np.concatenate([part.pieces for part in parts]), np.concatenate(ends), [])


def list_widths(longest: int) -> list[int]:
    """Returns 8, 12, 16, 24, 32, 48, ... and `longest` itself: padding below a third, few shapes."""
    widths, width = [], MIN_BUCKET
    while width < longest:
        widths.append(width)
        width = width * 3 // 2 if width & (width - 1) == 0 else width * 4 // 3
    return [*widths, longest]


def bucket_width(length: int) -> int:
    """Returns the narrowest width that holds `length` tokens."""
    return next(width for width in list_widths(1 << 30) if width >= length)


def find_starts(ends: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Returns where some pieces begin, of pieces that follow each other and end at `ends`."""
    return np.where(indices > 0, ends[indices - 1], 0)


def concatenate_ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Returns `counts[0]` numbers from `starts[0]` on, then `counts[1]` from `starts[1]` on, and so forth."""
    before = np.cumsum(counts) - counts
    return np.arange(counts.sum()) + np.repeat(starts - before, counts)


class Places(NamedTuple):
    """Places of the tokens of pieces in an array [rows, width], one piece after the other.

    Attributes:
      flat: int [tokens], indices into the flattened array.
      positions: int [tokens], from 0 in each piece.
      segments: int [tokens], number of the piece in its row, from 1.
    """

    flat: np.ndarray
    positions: np.ndarray
    segments: np.ndarray


def place(lengths: np.ndarray, counts: np.ndarray, width: int) -> Places:
    """Returns the places of pieces of these lengths in rows of `width` tokens.

    Row r has the next `counts[r]` pieces. A host may have no rows.
    """
    rows = np.repeat(np.arange(len(counts)), counts)
    firsts = np.repeat(np.cumsum(counts) - counts, counts)  # the first piece of the row of each piece
    segments = np.arange(len(rows)) - firsts + 1
    before = np.cumsum(lengths) - lengths
    starts = rows * width + before - before[firsts]
    positions = concatenate_ranges(np.zeros(len(lengths), int), lengths)
    return Places(np.repeat(starts, lengths) + positions, positions, np.repeat(segments, lengths))
