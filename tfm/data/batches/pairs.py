"""Batches of sentence pairs of one corpus or several, in length buckets or packed (section 5.1).

A batch is a dict of int32 arrays:

    inputs, input_positions, input_segments      [B, M]
    targets, target_positions, target_segments   [B, L]

Segments count the sentences of a row from 1, positions the tokens of a sentence from 0. Where the segment
is 0, all three are 0 and the place is padding. Targets are gold tokens that end in EOS.
"""

import collections
import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfm.data.batches.rows import Rows, bucket, join_rows, pack, place
from tfm.data.batches.schedule import Batch, Batches, cut_batches
from tfm.data.config import TEMPERATURE, PairsConfig
from tfm.data.source import join
from tfm.data.sources.opening import open_corpora
from tfm.data.token_cache import TokenCache
from tfm.data.tokenizers.sampling import SampledWordPieces, derive_seed
from tfm.errors import UserError

# Distinguishes the seed of a pass from the seed of an epoch's order, (seed, epoch): to NumPy, the latter
# equals (seed, epoch, 0, 0).
PASSES = 1
log = logging.getLogger(__name__)


class Group(NamedTuple):
    """The rows of one corpus and width.

    Attributes:
      width: the width.
      rows: int array, numbers of the rows.
      taken: number of rows that each epoch takes.
    """

    width: int
    rows: np.ndarray
    taken: int


class PairEpochs:
    """An `Epochs` of the usable pairs of a cache, in rows.

    Every epoch has the shares of `config.mixing`, or each pair once. A row has pairs of one corpus. The
    rows of one corpus and width are taken from endless shuffled passes that continue from one epoch to
    the next. So each pass has each row once, and all epochs have the same shapes.

    Args:
      cache: the tokenized pairs.
      config: how they are batched and mixed.
      seed: decides the order.
      corpora: number of pairs of each corpus, in the order of the cache. () means one corpus.

    Raises:
      UserError: if a corpus has no usable pair.
    """

    def __init__(self, cache: TokenCache, config: PairsConfig, seed: int, corpora: Sequence[int] = ()):
        self._cache, self._seed = cache, seed
        sizes = corpora if config.mixing and corpora else [len(cache)]
        parts = _make_rows_of_each(cache.lengths, config, seed, sizes)
        repeats = compute_repeats([len(part.pieces) for part in parts], config.mixing)
        self._groups = list(_divide(parts, repeats))
        self._rows = join_rows(parts)
        self.pieces = len(self._rows.pieces)
        taken: collections.Counter[int] = collections.Counter()
        for group in self._groups:
            taken[group.width] += group.taken
        self._width_ends = np.cumsum(list(taken.values()))[:-1]
        self.cuts = cut_batches(taken.items(), config.batch_tokens)
        tokens = np.add.reduceat(cache.lengths[self._rows.pieces].sum(1), np.r_[0, self._rows.ends[:-1]])
        self.tokens = float(sum(tokens[group.rows].mean() * group.taken for group in self._groups) / 2)

    def shuffle(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """See `Epochs`. Rows change places only within their width."""
        rng = np.random.default_rng((self._seed, epoch))
        order = np.concatenate([self._take(number, epoch) for number in range(len(self._groups))])
        for rows in np.split(order, self._width_ends):
            rng.shuffle(rows)
        return order, rng.permutation(len(self.cuts))

    def assemble(self, epoch: int, rows: np.ndarray, shape: tuple[int, int]) -> Batch:
        """See `Epochs`."""
        pairs, counts = self._rows.take(rows)
        batch = make_empty_batch(shape)
        for side, name in enumerate(("input", "target")):
            tokens, lengths = self._cache.tokens(side, pairs)
            places = place(lengths, counts, shape[1])
            batch[f"{name}s"].flat[places.flat] = tokens
            batch[f"{name}_positions"].flat[places.flat] = places.positions
            batch[f"{name}_segments"].flat[places.flat] = places.segments
        return batch

    def describe(self, epoch: int, rows: np.ndarray) -> dict[str, Any]:
        """See `Epochs`."""
        return {"pairs": self._rows.take(rows)[0].tolist()}

    def _take(self, number: int, epoch: int) -> np.ndarray:
        """Returns the numbers of the rows that an epoch takes from a group, int [taken].

        The epochs take consecutive parts of endless passes over the group, so an epoch takes the rest of one
        pass, some whole passes, and the beginning of another pass. A pass that two epochs share has a random
        order that depends only on the seed. A whole pass needs no random order, because `shuffle` moves the
        rows of an epoch anyway.

        Args:
          number: number of the group.
          epoch: number of the epoch, counted from 0.
        """
        group, count = self._groups[number], len(self._groups[number].rows)
        begin, end = epoch * group.taken, (epoch + 1) * group.taken
        parts = []
        for one_pass in range(begin // count, -(-end // count)):
            first, last = max(begin - one_pass * count, 0), min(end - one_pass * count, count)
            rows = group.rows
            if last - first < count:
                rng = np.random.default_rng((self._seed, number, one_pass, PASSES))
                rows = rng.permutation(rows)
            parts.append(rows[first:last])
        return np.concatenate(parts)


def open_train_batches(
    config: PairsConfig, seed: int, tokenizer: Any, *, host_index: int = 0, host_count: int = 1
) -> tuple[Batches, str]:
    """Returns the training batches, and tokenizes the split for each segmentation that the cache lacks.

    Args:
      config: the data section.
      seed: decides the order and the segmentations.
      tokenizer: of the run.
      host_index, host_count: this host among the hosts that share each batch.

    Returns:
      The batches, and the fingerprint of the training pairs.

    Raises:
      UserError: if the data cannot be used.
    """
    corpora = open_corpora(config, "train")
    pairs = join(corpora)
    sizes = [len(corpus) for corpus in corpora] if config.mixing else []
    tokenizers = [(seed, tokenizer)]
    if config.subword_dropout:
        seeds = [derive_seed(seed, version) for version in range(config.subword_samples)]
        tokenizers = [(each, SampledWordPieces(tokenizer, config.subword_dropout, each)) for each in seeds]
    versions = [
        PairEpochs(TokenCache.open(pairs, version_tokenizer, config.cache), config, version_seed, sizes)
        for version_seed, version_tokenizer in tokenizers
    ]
    return Batches(versions, host_index=host_index, host_count=host_count), pairs.fingerprint


def eval_batches(cache: TokenCache, config: PairsConfig) -> Iterator[Batch]:
    """Yields each usable pair of a cache once, in batches ordered by width, without shuffling and mixing.

    The last batch of a width is padded with empty rows. See `make_rows` for the usable pairs, and for the log
    and the error if pairs are left out.
    """
    epochs = PairEpochs(cache, dataclasses.replace(config, mixing=""), seed=0)
    for cut in epochs.cuts:
        yield epochs.assemble(0, np.arange(cut.first, cut.last), (cut.rows, cut.width))


def make_empty_batch(shape: tuple[int, int]) -> Batch:
    """Returns a batch of padding."""
    names = (f"{side}{kind}" for side in ("input", "target") for kind in ("s", "_positions", "_segments"))
    return {name: np.zeros(shape, np.int32) for name in names}


def make_rows(lengths: np.ndarray, config: PairsConfig, seed: int) -> Rows:
    """Returns rows of the usable pairs, and logs how many pairs are left out.

    A pair is usable if both sides have a token besides EOS, and at most `config.max_side_length` tokens.

    Args:
      lengths: int [pairs, 2], tokens of both sides.
      config: how the pairs are batched.
      seed: decides which pairs share a packed row.

    Raises:
      UserError: if no pair is usable.
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
            f"tokens on each side: check the data{_advise_length(lengths[~empty], config)}."
        )
    if config.batching == "packed":
        # In random order, because neighbours in a corpus are similar and the pairs of a row stay together.
        return pack(np.random.default_rng(seed).permutation(usable), lengths, config.row_length)
    return bucket(usable, lengths, config.max_side_length)


def _advise_length(lengths: np.ndarray, config: PairsConfig) -> str:
    """Returns the continuation of an error message, with a limit that allows half of the pairs.

    Args:
      lengths: tokens of the sides of the pairs with text on both sides, int [N, 2]. All pairs are too long.
      config: how the pairs are batched.
    """
    if not len(lengths):
        return ""
    needed = int(np.ceil(np.median(lengths.max(1))))
    names = ["max_length", "row_length"] if config.batching == "packed" else ["max_length"]
    fields = " and ".join(f"data.{name}" for name in names if getattr(config, name) < needed)
    return f", or raise {fields} to {needed:,}, which half of the pairs do not exceed"


def compute_repeats(sizes: Sequence[int], mixing: str) -> np.ndarray:
    """Returns how often an epoch has each pair of each corpus: float64 [corpora].

    An epoch has as many pairs as all corpora together. With `mixing` = "temperature:T", the share of a
    corpus of n pairs is proportional to n^(1/T) (Arivazhagan et al. 2019, section 4.2). Otherwise `mixing`
    has the shares, up to a factor. "" is 1 of each.

    Args:
      sizes: usable pairs of each corpus.
      mixing: `data.mixing`.
    """
    pairs = np.asarray(sizes, np.float64)
    if not mixing:
        return np.ones_like(pairs)
    if mixing.startswith(TEMPERATURE):
        logarithms = np.log(pairs) / float(mixing.removeprefix(TEMPERATURE))
        shares = np.exp(logarithms - logarithms.max())  # cannot overflow, whatever the temperature
    else:
        shares = np.array([float(share) for share in mixing.split(",")])
    return shares / shares.sum() * pairs.sum() / pairs


def _make_rows_of_each(
    lengths: np.ndarray, config: PairsConfig, seed: int, sizes: Sequence[int]
) -> list[Rows]:
    """Returns [Rows] of each corpus, whose pairs are counted over all corpora."""
    ends, parts = np.cumsum(sizes), []
    for number, (first, last) in enumerate(zip(ends - sizes, ends, strict=True), 1):
        try:
            rows = make_rows(lengths[first:last], config, seed)
        except UserError as error:
            if not config.mixing:
                raise
            raise UserError(f"Corpus {number} of data.train: {error}") from None
        parts.append(rows._replace(pieces=rows.pieces + first))
    return parts


def _divide(parts: Sequence[Rows], repeats: np.ndarray) -> Iterator[Group]:
    """Yields the groups, by width and then by corpus."""
    firsts = np.cumsum([0, *(len(part.ends) for part in parts)])
    for column in zip(*(part.widths for part in parts), strict=True):
        for corpus, (width, count) in enumerate(column):
            if count:
                rows = np.arange(firsts[corpus], firsts[corpus] + count)
                yield Group(width, rows, max(round(count * repeats[corpus]), 1))
            firsts[corpus] += count
