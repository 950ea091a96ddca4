"""Batches of a language model, in an order that only the seed decides, and windows to score each token once.

A batch is a dict of int32 arrays [B, L]:

    targets     tokens of documents, each of which ends in EOS
    inputs      the token before each target; BOS before the first one of a document
    positions   of the targets in their row, or in their part of a packed row, from 0
    segments    number of the text in a row, from 1; none attends to another
    weights     1 where the target counts for the loss

Where the segment is 0 all are 0 and the place is padding.
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tfm.data.packing import Rows, bucket_width, concatenate_ranges, find_starts, pack
from tfm.data.token_cache import TokenCache
from tfm.data.tokenizer import BOS_ID, EOS_ID
from tfm.errors import UserError

Batch = dict[str, np.ndarray]
ARRAYS = ("targets", "inputs", "positions", "segments", "weights")


class Parts(NamedTuple):
    """Parts of a stream of tokens: int arrays [parts] of where each begins, its length, and what counts.

    Attributes:
      starts, lengths: in tokens.
      counted: so many of the last tokens of a part count for the loss.
    """

    starts: np.ndarray
    lengths: np.ndarray
    counted: np.ndarray

    def take(self, indices: np.ndarray) -> "Parts":
        """Some of them."""
        return Parts(*(each[indices] for each in self))


class DocumentBatches:
    """Batches without end: `batch(step)` is a pure function of the step, the seed and the share of the host.

    Every epoch has as many batches as any other. With contiguous rows each epoch cuts the stream at another
    offset, so that what is before the first and behind the last whole row is left out of it; with packed ones
    it has every token once.

    Args:
      cache: the tokens of the split.
      config: a `tfm.data.config.DocumentsConfig`.
      seed: of the order.
      host_index, host_count: which share of each batch is made.

    Raises:
      UserError: there is no token.
    """

    def __init__(
        self, cache: TokenCache, config: Any, seed: int, *, host_index: int = 0, host_count: int = 1
    ):
        self._tokens, self._ends = cache.stream()
        self._config, self._length, self._seed = config, config.row_length, seed
        self._host_index, self._host_count = host_index, host_count
        self._rows_of_batch = count_rows(config)
        self._packed = None
        if config.rows == "packed":
            parts = split_documents(self._ends, self._length)
            order = np.random.default_rng(seed).permutation(len(parts.starts))
            self._packed = parts, pack(order, np.stack([parts.lengths] * 2, axis=1), self._length)
        self._epoch = functools.lru_cache(maxsize=2)(self._shuffle)
        self.rows = len(self._epoch(0)[2])

    @property
    def batches(self) -> int:
        """Batches of an epoch; the last one may have rows of padding."""
        return -(-self.rows // self._rows_of_batch)

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, tokens) of this host's batches."""
        return plan_shape(self._config, self._host_count)

    @property
    def padding_fraction(self) -> float:
        """Fraction of the places of an epoch's batches that hold no token."""
        parts, _, _ = self._epoch(0)
        return 1 - parts.lengths.sum() / (self.batches * self._rows_of_batch * self._length)

    def batch(self, step: int) -> Batch:
        """The batch of `step`, counted from 0 over all epochs."""
        parts, rows, _ = self._epoch(step // self.batches)
        chosen, counts = rows.take(self._chosen(step)[self._host_index :: self._host_count])
        return assemble(self._tokens, parts.take(chosen), counts, self.shape)

    def describe(self, step: int) -> dict[str, Any]:
        """Where the batch of `step` comes from: its epoch, its place there, and where its parts begin."""
        parts, rows, _ = self._epoch(step // self.batches)
        chosen, _ = rows.take(self._chosen(step))
        starts = parts.starts[chosen].tolist()
        return {"epoch": step // self.batches, "batch": step % self.batches, "starts": starts}

    def largest_batch(self) -> Batch:
        """A batch of zeros."""
        return make_empty_batch(self.shape)

    def _chosen(self, step):
        """The rows of a step's batch on all hosts."""
        order = self._epoch(step // self.batches)[2]
        first = step % self.batches * self._rows_of_batch
        return order[first : first + self._rows_of_batch]

    def _shuffle(self, epoch):
        """(parts, rows, order) of an epoch."""
        rng = np.random.default_rng((self._seed, epoch))
        if self._packed:
            parts, rows = self._packed
        else:
            parts = cut_stream(len(self._tokens), self._length, int(rng.integers(self._length)))
            count = len(parts.starts)
            rows = Rows(np.arange(count), np.arange(1, count + 1), [(self._length, count)])
        return parts, rows, rng.permutation(len(rows.ends))


def cut_stream(size: int, length: int, offset: int) -> Parts:
    """The whole rows of a stream of `size` tokens from `offset` on, as many for each offset below `length`.

    Of a stream shorter than two rows, less one token, all of it is one row, cut at `length`.

    Raises:
      UserError: it has no token.
    """
    if not size:
        raise UserError("The training documents have no token: check the data.")
    count = (size - length + 1) // length
    if count < 1:
        starts, lengths = np.zeros(1, int), np.array([min(size, length)])
    else:
        starts = offset + length * np.arange(count)
        lengths = np.full(count, length)
    return Parts(starts, lengths, lengths)


def split_documents(ends: np.ndarray, length: int) -> Parts:
    """Documents that end at `ends`, each cut into parts of at most `length` tokens."""
    starts, sizes = find_starts(ends, np.arange(len(ends))), np.diff(ends, prepend=0)
    counts = -(-sizes // length)
    number = concatenate_ranges(np.zeros(len(ends), int), counts)
    lengths = np.minimum(np.repeat(sizes, counts) - number * length, length)
    return Parts(np.repeat(starts, counts) + number * length, lengths, lengths)


def score_windows(ends: np.ndarray, length: int, stride: int) -> Parts:
    """Windows in which each token of each text counts once, with as much context as the stride leaves.

    The first window of a text counts all its tokens; each further one begins `stride` later and counts only
    what is new: it has at least `length - stride` tokens of context.

    Args:
      ends: int [texts], where each text ends; windows do not reach from one into another.
      length: tokens of a window.
      stride: from 1 to `length`.
    """
    starts, lengths, counted = [], [], []
    for begin, end in zip(find_starts(ends, np.arange(len(ends))).tolist(), ends.tolist(), strict=True):
        done = begin
        while done < end:
            upto = min(begin + length if done == begin else done + stride, end)
            first = max(upto - length, begin)
            starts.append(first)
            lengths.append(upto - first)
            counted.append(upto - done)
            done = upto
    return Parts(*(np.array(each, int) for each in (starts, lengths, counted)))


def window_batches(tokens: np.ndarray, windows: Parts, batch_tokens: int) -> Iterator[tuple[Parts, Batch]]:
    """Windows, a row each, in batches of few shapes: (windows of the batch, batch); the longest first."""
    order = np.argsort(-windows.lengths, kind="stable")
    most = int(windows.lengths.max())
    first = 0
    while first < len(order):
        width = min(bucket_width(int(windows.lengths[order[first]])), most)
        rows = max(batch_tokens // width, 1)
        chosen = windows.take(order[first : first + rows])
        yield chosen, assemble(tokens, chosen, np.ones(len(chosen.starts), int), (rows, width))
        first += rows


def count_rows(config: Any) -> int:
    """Rows of a batch on all hosts, of a data section."""
    return max(config.batch_tokens // config.row_length, 1)


def plan_shape(config: Any, host_count: int) -> tuple[int, int]:
    """(rows, tokens) of the batches of a host, of a data section."""
    return -(-count_rows(config) // host_count), config.row_length


def plan_largest_batch(config: Any, host_count: int) -> Batch:
    """`DocumentBatches.largest_batch` before there are data."""
    return make_empty_batch(plan_shape(config, host_count))


def make_empty_batch(shape: tuple[int, int]) -> Batch:
    """A batch of zeros of this shape."""
    return {name: np.zeros(shape, np.int32) for name in ARRAYS}


def assemble(tokens: np.ndarray, parts: Parts, counts: np.ndarray, shape: tuple[int, int]) -> Batch:
    """The batch [rows, length] whose row r has the next `counts[r]` of the parts, one behind the other."""
    lengths = parts.lengths
    index = concatenate_ranges(parts.starts, lengths)
    row = np.repeat(np.arange(len(counts)), counts)
    before = np.cumsum(lengths) - lengths
    column = before - before[np.searchsorted(row, row)] if len(row) else before
    places = concatenate_ranges(row * shape[1] + column, lengths)
    positions = concatenate_ranges(np.zeros(len(lengths), int), lengths)
    values = {
        "targets": tokens[index],
        "inputs": previous_tokens(tokens, index),
        "positions": positions,
        "segments": np.repeat(concatenate_ranges(np.ones(len(counts), int), counts), lengths),
        "weights": positions >= np.repeat(lengths - parts.counted, lengths),
    }
    batch = make_empty_batch(shape)
    for name, value in values.items():
        batch[name].flat[places] = value
    return batch


def previous_tokens(tokens: np.ndarray, index: np.ndarray) -> np.ndarray:
    """The token before each of `index`; BOS before the first one of a document."""
    before = tokens[np.maximum(index - 1, 0)].astype(np.int32)
    return np.where((index == 0) | (before == EOS_ID), BOS_ID, before)
