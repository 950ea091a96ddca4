"""Which pairs share a row of a batch: one a row in buckets of like length, or several packed into one."""

import array
import logging
from typing import Any, NamedTuple

import numpy as np

from tfm.data.config import DataConfig
from tfm.errors import UserError

log = logging.getLogger(__name__)

OPEN_ROWS = 32  # rows that packing tries before it closes the fullest
PACKED_AT_ONCE = 100_000  # pairs turned into Python numbers at a time
SHORTEST_BUCKET = 8


class Rows(NamedTuple):
    """All rows of an epoch, those of one width side by side.

    Attributes:
      pairs: int array, pair indices in the order of rows.
      ends: int array, row r holds pairs[ends[r - 1] : ends[r]].
      widths: list of (width, rows of this width).
    """

    pairs: np.ndarray
    ends: np.ndarray
    widths: list[tuple[int, int]]

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(pairs, counts): the pairs of some rows, one row after the other, and how many each has."""
        starts = find_starts(self.ends, rows)
        counts = self.ends[rows] - starts
        return self.pairs[concatenate_ranges(starts, counts)], counts


def make_rows(lengths: np.ndarray, config: DataConfig, seed: int) -> Rows:
    """Rows of the usable pairs: `lengths` is int [pairs, 2], `config` a `DataConfig`.

    Raises:
      UserError: no pair is usable.
    """
    usable = find_usable_pairs(lengths, config)
    if config.batching == "packed":
        # In random order, for neighbours in a corpus are alike and those of a row stay together.
        return pack(np.random.default_rng(seed).permutation(usable), lengths, config.row_length)
    widths = bucket_widths(config.max_side_length)
    bucket = np.searchsorted(widths, lengths[usable].max(1))
    counts = np.bincount(bucket, minlength=len(widths))
    pairs = usable[np.argsort(bucket, kind="stable")]
    return Rows(pairs, np.arange(1, len(pairs) + 1), list(zip(widths, counts.tolist(), strict=True)))


def find_usable_pairs(lengths: np.ndarray, config: DataConfig) -> np.ndarray:
    """Indices of the pairs that can be trained on; what is left out is logged.

    Raises:
      UserError: none is left.
    """
    empty = (lengths <= 1).any(1)
    long = (lengths > config.max_side_length).any(1)
    if empty.any() or long.any():
        log.warning(
            "Left out %s pairs with an empty side and %s with more than %s tokens on a side, of %s",
            f"{empty.sum():,}",
            f"{(long & ~empty).sum():,}",
            config.max_side_length,
            f"{len(lengths):,}",
        )
    usable = np.flatnonzero(~empty & ~long)
    if not len(usable):
        raise UserError(
            f"None of the {len(lengths):,} pairs has text on both sides and at most {config.max_side_length} "
            "tokens: check the data, or raise data.max_length and data.row_length."
        )
    return usable


def pack(order: np.ndarray, lengths: np.ndarray, width: int) -> Rows:
    """First-fit packing: a pair goes into the first open row with room for both its sides."""
    pairs, counts = array.array("q"), array.array("q")
    opened: list[list[Any]] = []

    def close(row):
        opened.remove(row)
        counts.append(len(row[2]))
        pairs.extend(row[2])

    for first in range(0, len(order), PACKED_AT_ONCE):
        block = order[first : first + PACKED_AT_ONCE]
        sides = lengths[block].T.tolist()
        for pair, source, target in zip(block.tolist(), *sides, strict=True):
            for row in opened:
                if row[0] >= source and row[1] >= target:
                    break
            else:
                if len(opened) == OPEN_ROWS:
                    close(min(opened, key=lambda row: row[0] + row[1]))
                row = [width, width, []]  # room left of source and target, pairs
                opened.append(row)
            row[0] -= source
            row[1] -= target
            row[2].append(pair)
    for row in list(opened):
        close(row)
    ends = np.cumsum(np.frombuffer(counts, np.int64))
    return Rows(np.frombuffer(pairs, np.int64), ends, [(width, len(ends))])


def bucket_widths(longest: int) -> list[int]:
    """8, 12, 16, 24, 32, 48, ... and `longest` itself: padding below a third, few shapes."""
    widths, width = [], SHORTEST_BUCKET
    while width < longest:
        widths.append(width)
        width = width * 3 // 2 if width & (width - 1) == 0 else width * 4 // 3
    return [*widths, longest]


def bucket_width(length: int) -> int:
    """The narrowest bucket that holds `length` tokens."""
    return next(width for width in bucket_widths(1 << 30) if width >= length)


def find_starts(ends: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Where the pieces of some indices begin, of pieces in a row that end at `ends`."""
    return np.where(indices > 0, ends[indices - 1], 0)


def concatenate_ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """starts[0], starts[0] + 1, ... `counts[0]` of them, then those from starts[1] on, and so forth."""
    before = np.cumsum(counts) - counts
    return np.arange(counts.sum()) + np.repeat(starts - before, counts)
