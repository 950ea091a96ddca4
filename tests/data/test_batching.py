"""Tests of the token cache and of batches of pairs: completeness, shapes, padding and length limits."""

import re

import numpy as np
import pytest

from tests.support.pairs import (
    Letters,
    Pairs,
    open_cache,
    pair_config,
    read_and_check_sentences,
    train_batches,
)
from tests.support.tiny import ids
from tfm.data.batches.pairs import eval_batches, make_rows
from tfm.data.batches.rows import concatenate_ranges, list_widths
from tfm.data.batches.schedule import prefetch
from tfm.data.token_cache import TokenCache
from tfm.errors import UserError


@pytest.fixture
def cache(tmp_path):
    return open_cache(tmp_path)


def epoch_steps(batches, epoch):
    """Returns the steps of an epoch, after a check that they are consecutive."""
    steps = [step for step in range(1000) if batches.epoch_of(step) == epoch]
    assert steps == list(range(steps[0], steps[-1] + 1))
    return steps


def test_cache_holds_every_pair_and_is_built_once(tmp_path):
    pairs = Pairs([("ab", "c"), ("", "xyz"), ("q", "")])
    cache = TokenCache.open(pairs, Letters(), str(tmp_path))
    assert [ids(cache, 0, i) for i in range(3)] == [[97, 98, 2], [2], [113, 2]]
    assert [ids(cache, 1, i) for i in range(3)] == [[99, 2], [120, 121, 122, 2], [2]]
    assert cache.lengths.tolist() == [[3, 2], [1, 4], [2, 1]]
    assert cache.tokens(0, np.array([0]))[0].dtype == np.uint16

    class Unreadable(Pairs):
        def __iter__(self):
            raise AssertionError("tokenised again")

    again = TokenCache.open(Unreadable(pairs), Letters(), str(tmp_path))
    assert ids(again, 1, 1) == ids(cache, 1, 1)


def test_each_tokenizer_has_its_own_cache(tmp_path):
    """The ids of up to 65,536 tokens are stored in 16 bits."""
    for size, dtype in ((65_536, np.uint16), (65_537, np.int32)):
        letters = Letters(size)
        letters.fingerprint = f"{size} letters"
        cache = TokenCache.open(Pairs([("a" + chr(size - 1), "b")]), letters, str(tmp_path))
        assert ids(cache, 0, 0) == [97, size - 1, 2]
        assert cache.tokens(0, np.array([0]))[0].dtype == dtype


def test_chunked_build_equals_build_in_one_chunk(tmp_path, monkeypatch):
    whole = open_cache(tmp_path / "whole", 50)
    monkeypatch.setattr("tfm.data.token_cache.CHUNK_PAIRS", 7)
    chunked = open_cache(tmp_path / "chunked", 50)
    np.testing.assert_array_equal(whole.lengths, chunked.lengths)
    assert all(ids(whole, 1, i) == ids(chunked, 1, i) for i in range(50))


def test_failed_build_leaves_no_files(tmp_path):
    class Failing(Pairs):
        def __iter__(self):
            raise UserError("line 3 is not UTF-8")

    with pytest.raises(UserError, match="line 3"):
        TokenCache.open(Failing([("a", "b")]), Letters(), str(tmp_path))
    assert not list((tmp_path / "tokens").iterdir())


@pytest.mark.parametrize("batching", ["packed", "buckets"])
def test_each_pair_occurs_once_per_epoch_and_once_in_evaluation(cache, batching):
    config = pair_config(batching=batching)
    batches = train_batches(cache, config, seed=3)
    expected = sorted((tuple(ids(cache, 0, i)), tuple(ids(cache, 1, i))) for i in range(len(cache)))
    for epoch in (map(batches.batch, epoch_steps(batches, 2)), eval_batches(cache, config)):
        assert sorted(pair for batch in epoch for pair in read_and_check_sentences(batch)) == expected


@pytest.mark.parametrize(("batching", "most"), [("packed", 1), ("buckets", 4)])
def test_batch_shapes_are_few_and_within_the_token_budget(cache, batching, most):
    batches = train_batches(cache, pair_config(batching=batching), seed=3)
    shapes = {batches.batch(step)["inputs"].shape for step in range(60)}
    assert shapes <= set(batches.shapes)
    assert len(batches.shapes) <= most
    assert all(rows * width <= 256 for rows, width in batches.shapes)
    assert all(value.dtype == np.int32 for value in batches.batch(0).values())


@pytest.mark.parametrize("batching", ["packed", "buckets"])
def test_padding_fraction_equals_the_padding_in_the_batches(cache, batching):
    batches = train_batches(cache, pair_config(batching=batching), seed=3)
    shown = [batches.batch(step) for step in epoch_steps(batches, 0)]
    segments = np.concatenate(
        [batch[f"{side}_segments"].ravel() for batch in shown for side in ("input", "target")]
    )
    assert batches.padding_fraction == pytest.approx((segments == 0).mean())


def test_long_and_empty_pairs_are_left_out_with_a_warning(tmp_path, caplog):
    pairs = Pairs([("a" * 40, "b"), ("a", ""), ("ab", "cd"), ("", ""), ("x", "y" * 31)])
    cache = TokenCache.open(pairs, Letters(), str(tmp_path))
    with caplog.at_level("WARNING", "tfm"):
        batches = train_batches(cache, pair_config(), seed=0)
    assert batches.pieces == 2
    assert re.search("2 pairs .* 1 with more than 32 tokens .* 5", caplog.text)


@pytest.mark.parametrize("fields", [{}, {"row_length": 16, "batching": "packed"}])
def test_data_without_usable_pairs_are_an_error_with_a_limit_that_works(tmp_path, fields):
    pairs = [("a" * 99, "b"), ("a", "b" * 79), ("a" * 200, "b"), ("", "")]
    cache = TokenCache.open(Pairs(pairs), Letters(), str(tmp_path))
    names = ("max_length", "row_length") if fields else ("max_length",)
    advice = " and ".join(f"data.{name}" for name in names)
    with pytest.raises(UserError, match=f"None of the 4 pairs .* or raise {advice} to 100, which"):
        train_batches(cache, pair_config(**fields), seed=0)
    batches = train_batches(cache, pair_config(**fields | dict.fromkeys(names, 100)), seed=0)
    assert batches.pieces == 2


def test_data_without_text_on_both_sides_are_an_error_without_a_limit(tmp_path):
    cache = TokenCache.open(Pairs([("a", "")]), Letters(), str(tmp_path))
    with pytest.raises(UserError, match=r"None of the 1 pairs .*: check the data\.$"):
        train_batches(cache, pair_config(), seed=0)


@pytest.mark.parametrize("fields", [{"max_length": 16}, {"row_length": 16, "batching": "packed"}])
@pytest.mark.parametrize("side", [0, 1])
def test_pair_may_be_as_long_as_the_limit(tmp_path, fields, side):
    texts = [["a", "b"] for _ in range(3)]
    for pair, tokens in zip(texts, (15, 16, 17), strict=True):
        pair[side] = "s" * (tokens - 1)  # EOS is added
    cache = TokenCache.open(Pairs(map(tuple, texts)), Letters(), str(tmp_path))
    batches = train_batches(cache, pair_config(**fields), seed=0)
    found = [
        len(pair[side])
        for step in range(batches.batches)
        for pair in read_and_check_sentences(batches.batch(step))
    ]
    assert sorted(found) == [15, 16]


@pytest.mark.parametrize(("length", "rows"), [(7, 1), (8, 2)])
@pytest.mark.parametrize("side", [0, 1])
def test_packed_pairs_fill_a_row_to_its_end(side, length, rows):
    lengths = np.full((2, 2), 2)
    lengths[:, side] = 9, length
    assert len(make_rows(lengths, pair_config(batching="packed", row_length=16), seed=0).ends) == rows


@pytest.mark.parametrize("start", [0, 13])
def test_prefetching_changes_no_batch(cache, start):
    batches = train_batches(cache, pair_config(), seed=1)
    ahead = prefetch(batches, start)
    for step in range(start, start + 5):
        assert read_and_check_sentences(next(ahead)) == read_and_check_sentences(batches.batch(step))


def test_concatenate_ranges_lists_the_numbers_of_each_range():
    starts, counts = np.array([5, 0, 7, 2]), np.array([2, 0, 1, 3])
    assert concatenate_ranges(starts, counts).tolist() == [5, 6, 7, 2, 3, 4]
    assert concatenate_ranges(starts[:0], counts[:0]).tolist() == []


def test_bucket_widths_grow_by_at_most_a_half():
    widths = list_widths(256)
    assert widths == [8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]
    assert list_widths(20) == [8, 12, 16, 20]
    assert list_widths(5) == [5]
