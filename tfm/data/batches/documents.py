"""Batches of a language model, and windows in which each token is scored once.

A batch is a dict of int32 arrays [B, L]:

    targets     tokens of documents; each document ends in EOS
    inputs      the token before each target; BOS before the first token of a document
    positions   of the targets in their row, or in their piece of a packed row, from 0
    segments    number of the piece in a row, from 1; no piece attends to another
    weights     1 where the target counts for the loss

Places of padding have 0 in all arrays.
"""

import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tfm.data.batches.rows import bucket_width, concatenate_ranges, find_starts, pack, place
from tfm.data.batches.schedule import Batch, Batches, cut_batches
from tfm.data.token_cache import TokenCache
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID
from tfm.errors import UserError

CHECKED_AT_ONCE = 1 << 16  # tokens
log = logging.getLogger(__name__)


class Pieces(NamedTuple):
    """Pieces of a stream of tokens: int arrays [pieces].

    Attributes:
      starts, lengths: in tokens.
      counted: number of the last tokens of a piece that count for the loss.
    """

    starts: np.ndarray
    lengths: np.ndarray
    counted: np.ndarray

    def take(self, indices: np.ndarray) -> "Pieces":
        """Returns some of the pieces."""
        return Pieces(*(values[indices] for values in self))


class DocumentEpochs:
    """An `Epochs` of the documents of a cache, in rows of `config.row_length` tokens.

    Contiguous rows cut the stream at a different offset in every epoch, so that an epoch leaves out the
    tokens before the first and after the last whole row. Packed rows have every token once.

    Args:
      cache: the tokens of the split.
      config: a `tfm.data.config.DocumentsConfig`.
      seed: decides offsets and order.

    Raises:
      UserError: if there is no token.
    """

    def __init__(self, cache: TokenCache, config: Any, seed: int):
        self._stream, ends = cache.stream()
        self._seed, self._length, self._packed = seed, config.row_length, None
        if config.rows == "packed":
            pieces = split_documents(ends, self._length)
            order = np.random.default_rng(seed).permutation(len(pieces.starts))
            rows = pack(order, pieces.lengths[:, None], self._length)
            self._packed = pieces, rows
            self.pieces, self.tokens, self._rows = (
                len(pieces.starts),
                float(len(self._stream)),
                len(rows.ends),
            )
        else:
            size = len(self._stream)
            self.pieces = self._rows = count_rows(size, self._length)
            self.tokens = float(self._rows * min(size, self._length))
        self.cuts = cut_batches([(self._length, self._rows)], config.batch_tokens)
        if not has_variety(self._stream):
            log.warning("The training documents repeat a single token: check the data")

    def shuffle(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """See `Epochs`. The cuts stay in their order, because all have one shape."""
        rng, _ = self._draw_offset(epoch)
        return rng.permutation(self._rows), np.arange(len(self.cuts))

    def assemble(self, epoch: int, rows: np.ndarray, shape: tuple[int, int]) -> Batch:
        """See `Epochs`."""
        pieces, counts = self._take(epoch, rows)
        return assemble(self._stream, pieces, counts, shape)

    def describe(self, epoch: int, rows: np.ndarray) -> dict[str, Any]:
        """See `Epochs`."""
        return {"starts": self._take(epoch, rows)[0].starts.tolist()}

    def _take(self, epoch: int, rows: np.ndarray) -> tuple[Pieces, np.ndarray]:
        """Returns the pieces of some rows of an epoch, and the number of pieces of each row.

        Contiguous rows are computed when they are needed, because a large corpus has millions.
        """
        if self._packed:
            pieces, all_rows = self._packed
            numbers, counts = all_rows.take(rows)
            return pieces.take(numbers), counts
        _, offset = self._draw_offset(epoch)
        return cut_stream(len(self._stream), self._length, offset, rows), np.ones(len(rows), int)

    def _draw_offset(self, epoch: int) -> tuple[np.random.Generator, int]:
        """Returns the random numbers of an epoch after its offset was drawn, and the offset."""
        rng = np.random.default_rng((self._seed, epoch))
        return rng, 0 if self._packed else int(rng.integers(self._length))


def train_batches(
    cache: TokenCache, config: Any, seed: int, *, host_index: int = 0, host_count: int = 1
) -> Batches:
    """Returns the training batches of a cache; see `DocumentEpochs`."""
    return Batches([DocumentEpochs(cache, config, seed)], host_index=host_index, host_count=host_count)


def has_variety(stream: np.ndarray) -> bool:
    """Returns whether a stream has two different tokens besides EOS. Reads only as far as necessary."""
    first = None
    for begin in range(0, len(stream), CHECKED_AT_ONCE):
        tokens = stream[begin : begin + CHECKED_AT_ONCE]
        tokens = tokens[tokens != EOS_ID]
        if first is None and len(tokens):
            first = tokens[0]
        if (tokens != first).any():
            return True
    return False


def count_rows(size: int, length: int) -> int:
    """Returns the number of rows into which `cut_stream` cuts a stream of `size` tokens.

    Raises:
      UserError: if there is no token.
    """
    if not size:
        raise UserError("The training documents have no token: check the data.")
    return max((size - length + 1) // length, 1)


def cut_stream(size: int, length: int, offset: int, rows: np.ndarray) -> Pieces:
    """Returns some of the rows into which a stream of `size` tokens is cut from `offset` on.

    The number of rows is the same for each offset below `length`. So at most 2 `length` - 2 tokens, before
    the first row and after the last row, are in no row. A stream that is too short for this is one row. It
    begins elsewhere for each offset.

    Args:
      size: number of tokens, at least 1.
      length: tokens of a row.
      offset: the first token of the first row.
      rows: numbers of the rows, each below `count_rows`.
    """
    longest = min(size, length)
    if size < 2 * length - 1:
        offset %= size - longest + 1
    lengths = np.full(len(rows), longest)
    return Pieces(offset + length * rows, lengths, lengths)


def split_documents(ends: np.ndarray, length: int) -> Pieces:
    """Cuts documents into consecutive pieces of at most `length` tokens. All tokens count for the loss.

    Args:
      ends: int [documents], where each document ends in the stream of tokens.
      length: maximum number of tokens of a piece.
    """
    starts, sizes = find_starts(ends, np.arange(len(ends))), np.diff(ends, prepend=0)
    counts = -(-sizes // length)
    number = concatenate_ranges(np.zeros(len(ends), int), counts)
    lengths = np.minimum(np.repeat(sizes, counts) - number * length, length)
    return Pieces(np.repeat(starts, counts) + number * length, lengths, lengths)


def score_windows(ends: np.ndarray, length: int, stride: int) -> Pieces:
    """Returns windows in which each token of each text counts once.

    The first window of a text counts all its tokens. Each further window has `length` tokens and counts only
    the last `stride` of them, because the earlier windows count the others. The last window ends with the
    text and may count fewer. So each token after the first window has at least `length - stride` tokens of
    context. Windows do not cross texts. A text of at most `length` tokens is one window, and an empty text
    has none.

    Args:
      ends: int [texts], where each text ends in the stream of tokens.
      length: maximum number of tokens of a window.
      stride: from 1 to `length`.
    """
    windows = []
    for begin, end in zip([0, *ends.tolist()], ends.tolist(), strict=False):
        done = begin
        while done < end:
            last = min(begin + length if done == begin else done + stride, end)
            first = max(last - length, begin)
            windows.append((first, last - first, last - done))
            done = last
    return Pieces(*np.array(windows, int).reshape(-1, 3).T)


def window_batches(stream: np.ndarray, windows: Pieces, batch_tokens: int) -> Iterator[tuple[Pieces, Batch]]:
    """Yields (windows of the batch, batch) with one window in each row, the longest first, in few shapes.

    A batch has as many rows as fit into `batch_tokens`, at least 1. Padding rows fill the last batch. There
    must be at least one window.
    """
    order = np.argsort(-windows.lengths, kind="stable")
    longest, first = int(windows.lengths.max()), 0
    while first < len(order):
        width = min(bucket_width(int(windows.lengths[order[first]])), longest)
        rows = max(batch_tokens // width, 1)
        part = windows.take(order[first : first + rows])
        yield part, assemble(stream, part, np.ones(len(part.starts), int), (rows, width))
        first += rows


def assemble(stream: np.ndarray, pieces: Pieces, counts: np.ndarray, shape: tuple[int, int]) -> Batch:
    """Returns the batch [rows, width] whose row r has the next `counts[r]` of the pieces.

    Rows without pieces, and the places after the last piece of a row, are padding. Of each piece, only the
    last `counted` tokens have the weight 1.
    """
    index = concatenate_ranges(pieces.starts, pieces.lengths)
    places = place(pieces.lengths, counts, shape[1])
    values = {
        "targets": stream[index],
        "inputs": previous_tokens(stream, index),
        "positions": places.positions,
        "segments": places.segments,
        "weights": places.positions >= np.repeat(pieces.lengths - pieces.counted, pieces.lengths),
    }
    batch = {name: np.zeros(shape, np.int32) for name in values}
    for name, value in values.items():
        batch[name].flat[places.flat] = value
    return batch


def previous_tokens(stream: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Returns the token before each of `index`; BOS before the first token of a document."""
    before = stream[np.maximum(index - 1, 0)].astype(np.int32)
    return np.where((index == 0) | (before == EOS_ID), BOS_ID, before)
