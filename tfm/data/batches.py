"""Batches by token budget (section 5.1), in length buckets or packed, in an order that only the seed decides.

A batch is a dict of int32 arrays, the same for both ways of batching:

    inputs, input_positions, input_segments      [B, M]
    targets, target_positions, target_segments   [B, L]

Segments count the sentences of a row from 1, positions the tokens of a sentence from 0; where the segment is
0 all three are 0 and the place is padding. Targets are gold tokens that end in EOS.
"""

import functools
import logging
import math
from typing import NamedTuple

import grain
import numpy as np

from tfm.errors import UserError

log = logging.getLogger(__name__)

OPEN_ROWS = 32  # rows that packing tries before it closes the fullest
SHORTEST_BUCKET = 8


class Plan(NamedTuple):
    """Which pairs stand in which row of which batch.

    Attributes:
      pairs: int array, pair indices in the order of rows.
      row_ends: int array, row r holds pairs[row_ends[r - 1] : row_ends[r]].
      batches: list of (first row, last row, rows, width): rows first to last - 1 in an array of shape
        [rows, width]; missing rows are padding, so that there are few shapes.
    """

    pairs: np.ndarray
    row_ends: np.ndarray
    batches: list[tuple[int, int, int, int]]

    def rows(self, first, last):
        """Pair indices of each row from `first` to `last - 1`."""
        starts = np.concatenate([[0], self.row_ends])
        return [self.pairs[starts[row] : starts[row + 1]] for row in range(first, last)]


class TrainBatches:
    """Batches without end: `batch(step)` is a pure function of the step, the seed and the share of the host.

    Every usable pair is in each epoch once. Pairs with an empty side or one longer than the limit are left
    out and counted in the log.
    """

    def __init__(self, cache, config, seed, *, host_index=0, host_count=1):
        self.cache = cache
        self._config, self._seed = config, seed
        self._host_index, self._host_count = host_index, host_count
        self._usable = usable_pairs(cache.lengths, config)
        self._plan = functools.lru_cache(maxsize=2)(self._make_plan)
        self._firsts = [0]  # the first step of each epoch whose end is known

    def batch(self, step):
        """The batch of `step`, counted from 0 over all epochs."""
        epoch = self.epoch_of(step)
        first, last, rows, width = self._plan(epoch).batches[step - self._firsts[epoch]]
        chosen = self._plan(epoch).rows(first, last)[self._host_index :: self._host_count]
        return assemble(self.cache, chosen, rows // self._host_count, width)

    def describe(self, step):
        """Where the batch of `step` comes from: its epoch, its place there, and its pairs on all hosts."""
        epoch = self.epoch_of(step)
        place = step - self._firsts[epoch]
        first, last, _, _ = self._plan(epoch).batches[place]
        pairs = np.concatenate(self._plan(epoch).rows(first, last)).tolist()
        return {"epoch": epoch, "batch": place, "pairs": pairs}

    def epoch_of(self, step):
        """The epoch, counted from 0, that has the batch of `step`."""
        while self._firsts[-1] <= step:
            self._firsts.append(self._firsts[-1] + len(self._plan(len(self._firsts) - 1).batches))
        return int(np.searchsorted(self._firsts, step, side="right")) - 1

    @property
    def shapes(self):
        """All shapes (rows, width) of this host's batches; both sides have the same width."""
        return sorted({(rows // self._host_count, width) for _, _, rows, width in self._plan(0).batches})

    def largest(self):
        """A batch of zeros of the largest shape."""
        rows, width = max(self.shapes, key=math.prod)
        return assemble(self.cache, [], rows, width)

    @property
    def padding_share(self):
        """Share of the places of the first epoch's batches that hold no token, both sides."""
        places = sum(2 * rows * width for _, _, rows, width in self._plan(0).batches)
        return 1 - self.cache.lengths[self._usable].sum() / places

    @property
    def pairs(self):
        """Pairs of an epoch."""
        return len(self._usable)

    def _make_plan(self, epoch):
        rng = np.random.default_rng((self._seed, epoch))
        order = rng.permutation(self._usable)
        return _plan(order, self.cache.lengths, self._config, self._host_count, rng)


def eval_batches(cache, config):
    """One pass over the usable pairs of a cache."""
    order = usable_pairs(cache.lengths, config)
    plan = _plan(order, cache.lengths, config, 1, None)
    for first, last, rows, width in plan.batches:
        yield assemble(cache, plan.rows(first, last), rows, width)


def usable_pairs(lengths, config):
    """Indices of the pairs that can be trained on; what is left out is logged.

    Raises:
      UserError: none is left.
    """
    empty = (lengths <= 1).any(1)
    long = (lengths > config.longest).any(1)
    if empty.any() or long.any():
        log.warning(
            "Left out %s pairs with an empty side and %s with more than %s tokens on a side, of %s",
            f"{empty.sum():,}",
            f"{(long & ~empty).sum():,}",
            config.longest,
            f"{len(lengths):,}",
        )
    usable = np.flatnonzero(~empty & ~long)
    if not len(usable):
        raise UserError(
            f"None of the {len(lengths):,} pairs has text on both sides and at most {config.longest} tokens: "
            "check the data, or raise data.max_length and data.row_length."
        )
    return usable


def assemble(cache, rows, count, width):
    """The batch of shape [count, width] whose first rows hold the pairs of `rows`."""
    batch = {
        name: np.zeros((count, width), np.int32)
        for side in ("input", "target")
        for name in (f"{side}s", f"{side}_positions", f"{side}_segments")
    }
    for side, read in (("input", cache.source), ("target", cache.target)):
        tokens, positions, segments = (batch[f"{side}{name}"] for name in ("s", "_positions", "_segments"))
        for row, pairs in enumerate(rows):
            start = 0
            for segment, pair in enumerate(pairs, 1):
                ids = read(pair)
                end = start + len(ids)
                tokens[row, start:end] = ids
                positions[row, start:end] = np.arange(len(ids))
                segments[row, start:end] = segment
                start = end
    return batch


def bucket_widths(longest):
    """8, 12, 16, 24, 32, 48, ... and `longest` itself: padding below a third, few shapes."""
    widths, width = [], SHORTEST_BUCKET
    while width < longest:
        widths.append(width)
        width = width * 3 // 2 if width & (width - 1) == 0 else width * 4 // 3
    return [*widths, longest]


def bucket_width(length):
    """The narrowest bucket that holds `length` tokens."""
    return next(width for width in bucket_widths(1 << 30) if width >= length)


def decode_batches(sentences, *, batch_size):
    """Sentences sorted by length into a bounded set of shapes, the longest first.

    Args:
      sentences: lists of ids.
      batch_size: rows at most.

    Yields:
      (indices, inputs): the places of the sentences in the list, and int32 [B, M]; B is a power of two or
      `batch_size`, M a bucket's width. Rows beyond the indices repeat the last sentence: they end with it,
      where rows of padding might decode on and on.
    """
    order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
    for first in range(0, len(order), batch_size):
        indices = order[first : first + batch_size]
        rows = min(batch_size, 1 << (len(indices) - 1).bit_length())
        longest = len(sentences[indices[0]])
        width = bucket_width(longest)
        inputs = np.zeros((rows, width), np.int32)
        for row, index in enumerate(fill_rows(indices, rows)):
            inputs[row, : len(sentences[index])] = sentences[index]
        yield indices, inputs


def fill_rows(indices, rows):
    """The sentence in each row of a batch of `decode_batches`: the indices, and the last again and again."""
    return [*indices, *[indices[-1]] * (rows - len(indices))]


def read_ahead(batches, start_step):
    """Batches from `start_step` on, prepared ahead of their use by Grain; resuming takes only the step."""
    dataset = grain.MapDataset.source(_FromStep(batches, start_step))
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=8)
    return iter(dataset.to_iter_dataset(options))


class _FromStep:
    """What Grain reads: item i is the batch of step start + i."""

    def __init__(self, batches, start):
        self._batches, self._start = batches, start

    def __len__(self):
        return 1 << 40

    def __getitem__(self, index):
        return self._batches.batch(self._start + index)


def _plan(order, lengths, config, host_count, rng):
    if config.batching == "packed":
        return _packed_plan(order, lengths, config, host_count)
    return _bucket_plan(order, lengths, config, host_count, rng)


def _rows_of_batch(config, width, host_count):
    """As many rows as the budget holds, a multiple of the hosts."""
    return max(config.batch_tokens // width // host_count, 1) * host_count


def _bucket_plan(order, lengths, config, host_count, rng):
    """Batches of pairs of like length, themselves in random order (or by length without `rng`)."""
    widths = bucket_widths(config.longest)
    bucket = np.searchsorted(widths, lengths[order].max(1))
    pairs = order[np.argsort(bucket, kind="stable")]
    ends = np.cumsum(np.bincount(bucket, minlength=len(widths)))
    batches = []
    for width, begin, end in zip(widths, [0, *ends[:-1]], ends, strict=True):
        rows = _rows_of_batch(config, width, host_count)
        batches += [(first, min(first + rows, end), rows, width) for first in range(begin, end, rows)]
    if rng is not None:
        rng.shuffle(batches)
    return Plan(pairs, np.arange(1, len(pairs) + 1), [tuple(map(int, batch)) for batch in batches])


def _packed_plan(order, lengths, config, host_count):
    """First-fit packing: a pair goes into the first open row with room for both its sides."""
    width = config.row_length
    closed, opened = [], []  # rows: [source room, target room, pairs]
    for pair, (source, target) in zip(order.tolist(), lengths[order].tolist(), strict=True):
        for row in opened:
            if row[0] >= source and row[1] >= target:
                break
        else:
            if len(opened) == OPEN_ROWS:
                fullest = min(opened, key=lambda row: row[0] + row[1])
                opened.remove(fullest)
                closed.append(fullest[2])
            row = [width, width, []]
            opened.append(row)
        row[0] -= source
        row[1] -= target
        row[2].append(pair)
    closed += [row[2] for row in opened]
    rows = _rows_of_batch(config, width, host_count)
    count = len(closed)
    batches = [(first, min(first + rows, count), rows, width) for first in range(0, count, rows)]
    pairs = np.asarray([pair for row in closed for pair in row], np.int64)
    return Plan(pairs, np.cumsum([len(row) for row in closed]), batches)
