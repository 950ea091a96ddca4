"""Batches by token budget (section 5.1), in length buckets or packed, in an order that only the seed decides.

A batch is a dict of int32 arrays, the same for both ways of batching:

    inputs, input_positions, input_segments      [B, M]
    targets, target_positions, target_segments   [B, L]

Segments count the sentences of a row from 1, positions the tokens of a sentence from 0; where the segment is
0 all three are 0 and the place is padding. Targets are gold tokens that end in EOS.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from tfm.data.config import DataConfig
from tfm.data.mixture import EveryRow, Mixture
from tfm.data.packing import Rows, bucket_width, concatenate_ranges, make_rows
from tfm.data.token_cache import TokenCache
from tfm.data.tokenizer import PAD_ID

Batch = dict[str, np.ndarray]
ARRAYS = [f"{side}{kind}" for side in ("input", "target") for kind in ("s", "_positions", "_segments")]


class TrainBatches:
    """Batches without end: `batch(step)` is a pure function of the step, the seed and the share of the host.

    Every usable pair is in each epoch once, unless corpora are mixed (`tfm.data.mixture`). Each epoch has as
    many batches as any other, with rows of another order; pairs with an empty side or one longer than the
    limit are left out and counted in the log.

    Args:
      cache: the tokenised pairs.
      config: how they are batched.
      seed: decides the order.
      corpora: pairs of each corpus, one behind the other in the cache; () is one corpus.
      host_index, host_count: this host among those that share each batch.

    Raises:
      UserError: no pair is usable, or the shares of `config.mixing` are not as many as the corpora.
    """

    def __init__(
        self,
        cache: TokenCache,
        config: DataConfig,
        seed: int,
        *,
        corpora: Sequence[int] = (),
        host_index: int = 0,
        host_count: int = 1,
    ):
        self.cache = cache
        self._seed, self._host_index, self._host_count = seed, host_index, host_count
        self._epochs: EveryRow | Mixture
        if config.mixing:
            self._epochs = Mixture(cache.lengths, config, seed, corpora or [len(cache)])
        else:
            self._epochs = EveryRow(cache.lengths, config, seed)
        self._boundaries = _batch_boundaries(self._epochs.widths, config.batch_tokens, host_count)
        self._order = functools.lru_cache(maxsize=2)(self._shuffle)

    def batch(self, step: int) -> Batch:
        """The batch of `step`, counted from 0 over all epochs."""
        chosen, count, width = self._chosen(step)
        mine = chosen[self._host_index :: self._host_count]
        return assemble(self.cache, self._epochs.rows, mine, count // self._host_count, width)

    def describe(self, step: int) -> dict[str, Any]:
        """Where the batch of `step` comes from: its epoch, its place there, and its pairs on all hosts."""
        pairs, _ = self._epochs.rows.take(self._chosen(step)[0])
        return {"epoch": self.epoch_of(step), "batch": step % len(self._boundaries), "pairs": pairs.tolist()}

    def epoch_of(self, step: int) -> int:
        """The epoch, counted from 0, that has the batch of `step`."""
        return step // len(self._boundaries)

    @property
    def batches(self) -> int:
        """Batches of an epoch."""
        return len(self._boundaries)

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """All shapes (rows, width) of this host's batches; both sides have the same width."""
        return sorted({(count // self._host_count, width) for _, _, count, width in self._boundaries})

    def largest_batch(self) -> Batch:
        """A batch of zeros of the largest shape."""
        count, width = max(self.shapes, key=math.prod)
        return make_empty_batch(count, width)

    @property
    def padding_fraction(self) -> float:
        """Share of the places of an epoch's batches that hold no token; of a mixture on average."""
        places = sum(2 * count * width for _, _, count, width in self._boundaries)
        return 1 - self._epochs.tokens / places

    @property
    def pairs(self) -> int:
        """Usable pairs of all corpora."""
        return len(self._epochs.rows.pairs)

    def _chosen(self, step):
        """(rows, count, width): the rows of a step's batch on all hosts, and the shape of their array."""
        order, turns = self._order(self.epoch_of(step))
        first, last, count, width = self._boundaries[turns[step % len(self._boundaries)]]
        return order[first:last], count, width

    def _shuffle(self, epoch):
        """(order, turns): of the rows, each within its width, and of the batches."""
        rng = np.random.default_rng((self._seed, epoch))
        order = self._epochs.choose(epoch)
        first = 0
        for _, count in self._epochs.widths:
            rng.shuffle(order[first : first + count])
            first += count
        return order, rng.permutation(len(self._boundaries))


def eval_batches(cache: TokenCache, config: DataConfig) -> Iterator[Batch]:
    """One pass over the usable pairs of a cache."""
    rows = make_rows(cache.lengths, config, seed=0)
    for first, last, count, width in _batch_boundaries(rows.widths, config.batch_tokens, 1):
        yield assemble(cache, rows, np.arange(first, last), count, width)


def _batch_boundaries(widths, batch_tokens, host_count):
    """Where batches begin and end: a list of (first row, last row, rows, width).

    Each is an array [rows, width] of the rows first to last - 1; missing ones are padding, so that there are
    few shapes. A batch has as many rows as the budget allows, on any number of hosts: a run that resumes
    on more or fewer of them has the same batches. Only the array has a multiple of the hosts.
    """
    cuts, begin = [], 0
    for width, count in widths:
        rows = max(batch_tokens // width, 1)
        array_rows = -(-rows // host_count) * host_count
        end = begin + count
        cuts += [(first, min(first + rows, end), array_rows, width) for first in range(begin, end, rows)]
        begin = end
    return cuts


def assemble(cache: TokenCache, rows: Rows, chosen: np.ndarray, count: int, width: int) -> Batch:
    """The batch of shape [count, width] whose first rows are `chosen`, an int array, of the `Rows`."""
    pairs, pairs_of = rows.take(chosen)
    row = np.repeat(np.arange(len(chosen)), pairs_of)
    segment = concatenate_ranges(np.ones(len(chosen), int), pairs_of)
    batch = make_empty_batch(count, width)
    for side, name in enumerate(("input", "target")):
        tokens, lengths = cache.tokens(side, pairs)
        before = np.cumsum(lengths) - lengths
        column = before - before[np.searchsorted(row, row)]
        places = concatenate_ranges(row * width + column, lengths)
        for key, values in (
            (f"{name}s", tokens),
            (f"{name}_positions", concatenate_ranges(np.zeros(len(pairs), int), lengths)),
            (f"{name}_segments", np.repeat(segment, lengths)),
        ):
            batch[key].flat[places] = values
    return batch


def make_empty_batch(count: int, width: int) -> Batch:
    """A batch of padding alone, of shape [count, width]."""
    return {name: np.zeros((count, width), np.int32) for name in ARRAYS}


def plan_largest_batch(config: DataConfig, host_count: int) -> Batch | None:
    """`TrainBatches.largest_batch` before there are data; None for buckets, which depend on their lengths."""
    if config.batching != "packed":
        return None
    _, _, count, width = _batch_boundaries([(config.row_length, 1)], config.batch_tokens, host_count)[0]
    return make_empty_batch(count // host_count, width)


def decode_rows(lengths: Sequence[int], batch_size: int) -> Iterator[tuple[list[int], list[int]]]:
    """Which sentences are decoded side by side: those of like length, the longest first.

    Args:
      lengths: of the sentences.
      batch_size: rows at most.

    Yields:
      (indices, rows): the sentences of a batch, and the one in each of its rows. Rows are `batch_size` or a
      power of two, so that there are few shapes; those beyond the indices repeat the last sentence: they end
      with it, where rows of padding might decode on and on.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    for first in range(0, len(order), batch_size):
        indices = order[first : first + batch_size]
        count = min(batch_size, 1 << (len(indices) - 1).bit_length())
        yield indices, [*indices, *indices[-1:] * (count - len(indices))]


def pad_sentences(sentences: Sequence[Sequence[int]], fill: int = PAD_ID) -> np.ndarray:
    """Lists of ids -> int32 [B, M] with `fill` behind each; M is a bucket's width, so that there are few."""
    array = np.full((len(sentences), bucket_width(max(map(len, sentences)))), fill, np.int32)
    for row, ids in enumerate(sentences):
        array[row, : len(ids)] = ids
    return array


class Batches(Protocol):
    """Batches without end, which depend on nothing but the step."""

    def batch(self, step: int) -> Batch:
        """The batch of `step`, counted from 0 over all epochs."""


def prefetch(batches: Batches, start_step: int) -> Iterator[Batch]:
    """Batches from `start_step` on, prepared ahead of their use by Grain; resuming takes only the step."""
    import grain  # takes a tenth of a second, which only training needs to wait for

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
