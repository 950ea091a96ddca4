"""Which rows each batch has: a pure function of seed, step and host, for rows of tokens of any kind."""

import bisect
import functools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

Batch = dict[str, np.ndarray]


class Cut(NamedTuple):
    """A batch of an epoch.

    Attributes:
      first, last: the batch has the rows `first` to `last` - 1 of the epoch's order.
      rows, width: shape of the array on one host. Missing rows are padding.
    """

    first: int
    last: int
    rows: int
    width: int


class Epochs(Protocol):
    """Rows of tokens in an order that differs between epochs.

    Attributes:
      cuts: the batches of an epoch, the same for every epoch.
      tokens: mean number of tokens of an epoch on one side, for the padding.
      pieces: number of sentence pairs, or of pieces of documents, that can be trained on.
    """

    cuts: Sequence[Cut]
    tokens: float
    pieces: int

    def shuffle(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns (order of the rows, order of the cuts) of an epoch."""

    def assemble(self, epoch: int, rows: np.ndarray, shape: tuple[int, int]) -> Batch:
        """Returns the arrays of some rows, filled up to the shape with padding."""

    def describe(self, epoch: int, rows: np.ndarray) -> dict[str, Any]:
        """Returns what identifies the content of some rows."""


class Batches:
    """Batches without end: `batch(step)` depends on nothing but the step, the seed and the host.

    A batch has the same rows on any number of hosts, so that a run can resume on more or fewer hosts. Only
    the arrays of all hosts together have a multiple of the hosts. Missing rows are padding.

    Args:
      versions: the data. Epoch e reads number e modulo their count. There is one version, or one for each
        segmentation of the texts. Versions may have different numbers of batches.
      host_index, host_count: this host among the hosts that share each batch.
    """

    def __init__(self, versions: Sequence[Epochs], *, host_index: int = 0, host_count: int = 1):
        self._versions, self._host_index, self._host_count = versions, host_index, host_count
        self._ends = np.cumsum([len(version.cuts) for version in versions]).tolist()
        self._shuffle = functools.lru_cache(maxsize=2)(
            lambda version, epoch: versions[version].shuffle(epoch)
        )

    def batch(self, step: int) -> Batch:
        """Returns this host's part of the batch of `step`, counted from 0 over all epochs."""
        version, epoch, rows, cut = self._find(step)
        rows = rows[self._host_index :: self._host_count]
        return self._versions[version].assemble(epoch, rows, self._host_shape(cut.rows, cut.width))

    def describe(self, step: int) -> dict[str, Any]:
        """Returns where the batch of `step` comes from: epoch, number in the epoch, rows of all hosts."""
        version, epoch, rows, _ = self._find(step)
        number = step % self._ends[-1] - [0, *self._ends][version]
        place = {"epoch": self.epoch_of(step), "batch": number}
        segmentation = {"segmentation": version} if len(self._versions) > 1 else {}
        return place | self._versions[version].describe(epoch, rows) | segmentation

    def epoch_of(self, step: int) -> int:
        """Returns the epoch, counted from 0, that has the batch of `step`."""
        cycle, place = divmod(step, self._ends[-1])
        return cycle * len(self._versions) + bisect.bisect_right(self._ends, place)

    @property
    def batches(self) -> int:
        """Number of batches of an epoch, on average."""
        return round(self._ends[-1] / len(self._versions))

    @property
    def pieces(self) -> int:
        """Number of usable pairs or pieces, of the segmentation that has the fewest."""
        return min(version.pieces for version in self._versions)

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """All shapes (rows, width) of this host's batches."""
        sizes = (size for version in self._versions for size in count_sizes(version.cuts))
        return sorted({self._host_shape(*size) for size in sizes})

    def largest_batch(self) -> Batch:
        """Returns a batch of padding of the largest shape."""
        return self._versions[0].assemble(0, np.zeros(0, int), max(self.shapes, key=math.prod))

    @property
    def padding_fraction(self) -> float:
        """Fraction of an epoch's places that hold no token, on average."""
        padding = []
        for version in self._versions:
            sizes = count_sizes(version.cuts).items()
            places = sum(count * math.prod(self._host_shape(*size)) for size, count in sizes)
            padding.append(1 - version.tokens / (places * self._host_count))
        return float(np.mean(padding))

    def _host_shape(self, rows: int, width: int) -> tuple[int, int]:
        """Returns the shape of the arrays on this host for a batch of this shape."""
        return -(-rows // self._host_count), width

    def _find(self, step: int) -> tuple[int, int, np.ndarray, Cut]:
        """Returns (version, its own epoch, rows on all hosts, cut) of a step."""
        epoch, place = divmod(step, self._ends[-1])
        version = bisect.bisect_right(self._ends, place)
        order, turns = self._shuffle(version, epoch)
        cut = self._versions[version].cuts[turns[place - [0, *self._ends][version]]]
        return version, epoch, order[cut.first : cut.last], cut


class EqualCuts(Sequence[Cut]):
    """The batches of an epoch whose rows all have one width. They are made when they are needed.

    Args:
      width: width of the rows.
      count: number of rows.
      rows: rows of a batch.
    """

    def __init__(self, width: int, count: int, rows: int):
        self._width, self._count, self._rows = width, count, rows

    def __len__(self) -> int:
        return -(-self._count // self._rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        first = range(0, self._count, self._rows)[index]
        return Cut(first, min(first + self._rows, self._count), self._rows, self._width)


def count_sizes(cuts: Sequence[Cut]) -> dict[tuple[int, int], int]:
    """Returns {(rows, width): number of batches} of an epoch."""
    if isinstance(cuts, EqualCuts):
        return {(cuts[0].rows, cuts[0].width): len(cuts)} if len(cuts) else {}
    return Counter((cut.rows, cut.width) for cut in cuts)


def cut_batches(widths: Collection[tuple[int, int]], batch_tokens: int) -> Sequence[Cut]:
    """Divides rows into batches of at most `batch_tokens` on a side, but at least one row, in few shapes.

    Args:
      widths: (width, number of rows), of rows that are ordered by width.
      batch_tokens: the budget.
    """
    if len(widths) == 1:
        [(width, count)] = widths
        return EqualCuts(width, count, max(batch_tokens // width, 1))
    cuts: list[Cut] = []
    begin = 0
    for width, count in widths:
        rows, end = max(batch_tokens // width, 1), begin + count
        cuts += [Cut(first, min(first + rows, end), rows, width) for first in range(begin, end, rows)]
        begin = end
    return cuts


def prefetch(batches: Any, start_step: int) -> Iterator[Batch]:
    """Returns batches from `start_step` on. Grain prepares them ahead of their use.

    Args:
      batches: has `batch(step)`.
      start_step: the first step. Resuming needs nothing else.
    """
    import grain  # takes a tenth of a second; only training needs it

    dataset = grain.MapDataset.source(_FromStep(batches, start_step))
    return iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=8)))


class _FromStep:
    """The source that Grain reads: item i is the batch of step start + i."""

    def __init__(self, batches: Any, start: int):
        self._batches, self._start = batches, start

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: int) -> Batch:
        return self._batches.batch(self._start + index)


class PrefetchedData:
    """Training batches that a thread prefetches, and the fingerprints of the data.

    Args:
      batches: has `batch(step)`, `describe(step)` and `largest_batch()`.
      fingerprints: {name: fingerprint} of the data and of what prepared the data.
    """

    def __init__(self, batches: Any, fingerprints: dict[str, str]):
        self.batches = batches
        self._fingerprints = fingerprints

    def train_batches(self, start_step: int) -> Iterator[Batch]:
        """Returns an endless iterator over the batches from `start_step` on."""
        return prefetch(self.batches, start_step)

    def identity(self) -> dict[str, str]:
        """Returns {name: fingerprint} of the data and of what prepared the data."""
        return self._fingerprints

    def describe_batch(self, step: int) -> dict[str, Any]:
        """Returns what identifies the batch of `step` in the data."""
        return self.batches.describe(step)

    def example(self) -> Batch:
        """Returns a batch of zeros of the largest shape."""
        return self.batches.largest_batch()
