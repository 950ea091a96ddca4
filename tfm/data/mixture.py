"""Which rows an epoch has: each once, or those of several corpora in given shares."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfm.data.config import TEMPERATURE, DataConfig, check_shares
from tfm.data.packing import Rows, make_rows
from tfm.errors import UserError

# Marks the seed of a pass: to NumPy (seed, epoch), the seed of an epoch's order, is (seed, epoch, 0, 0).
PASSES = 1


class EveryRow:
    """Each row of the usable pairs once an epoch.

    Attributes:
      rows: all of them.
      widths: list of (width, rows of this width in an epoch).
      tokens: of an epoch, both sides.
    """

    def __init__(self, lengths: np.ndarray, config: DataConfig, seed: int):
        self.rows = make_rows(lengths, config, seed)
        self.widths = self.rows.widths
        self.tokens = float(lengths[self.rows.pairs].sum())

    def choose(self, epoch: int) -> np.ndarray:
        """Indices of the rows of an epoch, those of one width side by side."""
        return np.arange(len(self.rows.ends))


class Mixture:
    """Rows of several corpora, so that an epoch has the shares of `config.mixing`, in pairs.

    A packed row has pairs of one corpus. The rows of one corpus and width are taken from endless shuffled
    passes over them, where the epoch before ended: none comes twice before all others have come once. Each
    epoch takes as many, at least one, so all epochs have the same shapes.

    Args:
      lengths: int [pairs, sides], tokens.
      config: with `mixing`.
      seed: decides the order of the passes.
      corpora: pairs of each corpus, one behind the other in `lengths`.

    Attributes:
      rows, widths: as those of `EveryRow`.
      tokens: of an epoch on average, both sides.

    Raises:
      UserError: a corpus has no usable pair, or there are more or fewer shares than corpora.
    """

    def __init__(self, lengths: np.ndarray, config: DataConfig, seed: int, corpora: Sequence[int]):
        parts = _make_rows_of_each(lengths, config, seed, corpora)
        repeats = compute_repeats([len(part.pairs) for part in parts], config.mixing)
        self._seed = seed
        self._groups = list(_divide(parts, repeats))
        self.rows = _join(parts)
        taken: dict[int, int] = {}
        for group in self._groups:
            taken[group.width] = taken.get(group.width, 0) + group.taken
        self.widths = list(taken.items())
        tokens = np.add.reduceat(lengths[self.rows.pairs].sum(1), np.r_[0, self.rows.ends[:-1]])
        self.tokens = float(sum(tokens[group.indices].mean() * group.taken for group in self._groups))

    def choose(self, epoch: int) -> np.ndarray:
        """Indices of the rows of an epoch, those of one width side by side."""
        return np.concatenate([self._take(number, epoch) for number in range(len(self._groups))])

    def _take(self, number, epoch):
        """Those of one group: the rest of a pass, whole passes, in whatever order, and a beginning."""
        group, count = self._groups[number], len(self._groups[number].indices)
        begin, end = epoch * group.taken, (epoch + 1) * group.taken
        first, last = -(-begin // count), end // count  # passes that begin in this epoch, that end in it
        if first > last:
            return self._shuffle(number, last)[begin - last * count : end - last * count]
        rest = self._shuffle(number, first - 1)[begin - (first - 1) * count :] if begin % count else []
        beginning = self._shuffle(number, last)[: end - last * count]
        return np.concatenate([rest, np.tile(group.indices, last - first), beginning]).astype(int)

    def _shuffle(self, number, each):
        """The indices of a group in the order of one of its passes."""
        rng = np.random.default_rng((self._seed, number, each, PASSES))
        return rng.permutation(self._groups[number].indices)


class _Group(NamedTuple):
    """The rows of one corpus and width: their indices, and how many of them an epoch takes."""

    width: int
    indices: np.ndarray
    taken: int


def _make_rows_of_each(lengths, config, seed, corpora):
    """[Rows] of each corpus, whose pairs are counted over all."""
    ends = np.cumsum(corpora)
    parts = []
    for number, (first, last) in enumerate(zip(ends - corpora, ends, strict=True), 1):
        try:
            rows = make_rows(lengths[first:last], config, seed)
        except UserError as error:
            raise UserError(f"Corpus {number} of data.train: {error}") from None
        parts.append(rows._replace(pairs=rows.pairs + first))
    return parts


def _divide(parts, repeats):
    """Yields the groups, by width and then by corpus, so that those of one width are side by side."""
    firsts = np.cumsum([0, *(len(part.ends) for part in parts)])
    for column in zip(*(part.widths for part in parts), strict=True):
        for corpus, (width, count) in enumerate(column):
            if count:
                indices = np.arange(firsts[corpus], firsts[corpus] + count)
                yield _Group(width, indices, max(round(count * repeats[corpus]), 1))
            firsts[corpus] += count


def _join(parts):
    """`Rows` of all corpora, those of one behind those of the other; their widths are of no use then."""
    before = np.cumsum([0, *(len(part.pairs) for part in parts)])
    ends = [part.ends + pairs for part, pairs in zip(parts, before[:-1], strict=True)]
    return Rows(np.concatenate([part.pairs for part in parts]), np.concatenate(ends), [])


def compute_repeats(sizes: Sequence[int], mixing: str) -> np.ndarray:
    """Returns how often an epoch has each pair of each corpus: float64 [corpora].

    An epoch has as many pairs as all corpora together. With `mixing` = "temperature:T" the share of a corpus
    of n pairs is in proportion to n^(1/T) (Arivazhagan et al. 2019, section 4.2); else `mixing` has the
    shares, up to a factor. "" is 1 of each.

    Args:
      sizes: usable pairs of each corpus.
      mixing: `data.mixing`.

    Raises:
      UserError: more or fewer shares than corpora.
    """
    pairs = np.asarray(sizes, np.float64)
    check_shares(mixing, len(pairs))
    if not mixing:
        return np.ones_like(pairs)
    if mixing.startswith(TEMPERATURE):
        logarithms = np.log(pairs) / float(mixing.removeprefix(TEMPERATURE))
        shares = np.exp(logarithms - logarithms.max())  # whatever the temperature, no overflow
    else:
        shares = np.array([float(share) for share in mixing.split(",")])
    return shares / shares.sum() * pairs.sum() / pairs
