"""Tests of mixed corpora: shares, how often pairs occur, and padding."""

import collections
import itertools

import numpy as np
import pytest

from tests.support.pairs import (
    Letters,
    Pairs,
    open_cache,
    pair_config,
    random_pairs,
    read_and_check_sentences,
    train_batches,
)
from tests.support.tiny import ids
from tfm.data.token_cache import TokenCache
from tfm.errors import UserError

SIZES = (150, 50)  # pairs of each corpus in the cache
BATCHINGS = pytest.mark.parametrize("batching", ["packed", "buckets"])


@pytest.fixture
def cache(tmp_path):
    return open_cache(tmp_path, sum(SIZES))


def open_batches(cache, seed=3, corpora=SIZES, mixing="1,1", **fields):
    fields |= {"kind": "text", "train": "a,b" if corpora else "a"}
    hosts = {name: fields.pop(name) for name in ("host_index", "host_count") if name in fields}
    return train_batches(cache, pair_config(mixing=mixing, **fields), seed, corpora=corpora, **hosts)


def pairs_of_epoch(batches, epoch):
    """Returns the indices of the pairs of an epoch. The first letter of pair i is the number 1000 + i."""
    steps = range(epoch * batches.batches, (epoch + 1) * batches.batches)
    return [source[0] - 1000 for step in steps for source, _ in read_and_check_sentences(batches.batch(step))]


@BATCHINGS
@pytest.mark.parametrize(("mixing", "share"), [("1,1", 0.5), ("1,3", 0.75), ("temperature:2", 0.366)])
def test_epochs_have_the_configured_shares(cache, batching, mixing, share):
    batches = open_batches(cache, batching=batching, mixing=mixing)
    found = [pair for epoch in range(8) for pair in pairs_of_epoch(batches, epoch)]
    assert len(found) == pytest.approx(8 * sum(SIZES), rel=0.05)
    assert np.mean(np.array(found) >= SIZES[0]) == pytest.approx(share, abs=0.03)


@BATCHINGS
def test_pairs_of_one_corpus_and_width_occur_equally_often(cache, batching):
    """Over many epochs, the counts of these pairs differ by at most 1."""
    batches = open_batches(cache, batching=batching)
    counts = collections.Counter(itertools.chain(*(pairs_of_epoch(batches, epoch) for epoch in range(13))))
    widths = (8, 12, 16, 24, 32) if batching == "buckets" else (32,)
    groups = collections.defaultdict(list)
    for pair, lengths in enumerate(cache.lengths):
        groups[pair < SIZES[0], np.searchsorted(widths, lengths.max())].append(counts[pair])
    assert all(min(group) > 0 and max(group) - min(group) <= 1 for group in groups.values())
    assert max(counts.values()) > min(counts.values()) + 10  # the small corpus occurs more often


@BATCHINGS
def test_each_row_has_pairs_of_one_corpus(cache, batching):
    batches = open_batches(cache, batching=batching)
    for step in range(batches.batches):
        batch = batches.batch(step)
        for row in batch["inputs"]:
            corpora = {letter - 1000 < SIZES[0] for letter in row[row >= 1000].tolist()}
            assert len(corpora) <= 1


@BATCHINGS
def test_padding_fraction_equals_the_padding_in_the_batches(tmp_path, batching):
    """The texts of one corpus are longer than those of the other."""
    pairs = Pairs(sorted(random_pairs(sum(SIZES)), key=lambda pair: len(pair[0] + pair[1])))
    batches = open_batches(TokenCache.open(pairs, Letters(), str(tmp_path)), batching=batching)
    steps = range(20 * batches.batches)
    arrays = [batches.batch(step)[f"{side}_segments"] for step in steps for side in ("input", "target")]
    padding = 1 - sum(np.count_nonzero(x) for x in arrays) / sum(x.size for x in arrays)
    assert batches.padding_fraction == pytest.approx(padding, abs=0.005)


def test_epoch_of_a_single_corpus_has_each_pair_once(cache):
    batches = open_batches(cache, corpora=(), mixing="1", batching="buckets")
    assert sorted(pairs_of_epoch(batches, 2)) == list(range(len(cache)))


def test_corpus_of_one_pair_fills_its_share_of_an_epoch(tmp_path):
    """With equal shares, the pair occurs about as often as all pairs of the other corpus together."""
    cache = open_cache(tmp_path, 1001)
    batches = open_batches(cache, corpora=(1, 1000), batching="packed", batch_tokens=8192)
    found = collections.Counter(pairs_of_epoch(batches, 0))
    assert 400 < found[0] < 600
    assert max(count for pair, count in found.items() if pair) == 1


def test_corpus_without_usable_pairs_is_an_error(tmp_path):
    pairs = Pairs([("a", "b"), ("", "b")])
    cache = TokenCache.open(pairs, Letters(), str(tmp_path))
    with pytest.raises(UserError, match=r"Corpus 2 of data\.train: .* 1 pairs"):
        open_batches(cache, corpora=(1, 1))


def test_description_of_a_batch_lists_its_pairs(cache):
    batches = open_batches(cache, batching="packed")
    step = batches.batches + 3
    found = batches.describe(step)
    sources = {source for source, _ in read_and_check_sentences(batches.batch(step))}
    assert (found["epoch"], found["batch"]) == (1, 3)
    assert {tuple(ids(cache, 0, pair)) for pair in found["pairs"]} == sources
