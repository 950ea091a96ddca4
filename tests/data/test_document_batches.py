"""Tests of the batches of language models, and of windows that score each token once."""

import dataclasses

import numpy as np
import pytest

from tfm.data.batches.documents import (
    assemble,
    count_rows,
    cut_stream,
    score_windows,
    split_documents,
    train_batches,
    window_batches,
)
from tfm.data.batches.schedule import Cut, count_sizes, cut_batches
from tfm.data.config import DocumentsConfig
from tfm.data.source import hold
from tfm.data.token_cache import TokenCache
from tfm.data.tokenizers.characters import Characters
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID
from tfm.errors import UserError

TEXTS = ["a" * 30, "bcdef", "", "ghijklm" * 3, "n"]
CONTIGUOUS = DocumentsConfig(row_length=8, batch_tokens=24)
PACKED = dataclasses.replace(CONTIGUOUS, rows="packed")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("cache"))
    return TokenCache.open(hold([(text,) for text in TEXTS], "texts"), Characters(), folder)


def test_contiguous_rows_are_slices_of_the_stream(cache):
    """Rows of one epoch do not overlap, and each input is the target before it."""
    tokens, _ = cache.stream()
    previous = np.concatenate([[BOS_ID], np.where(tokens[:-1] == EOS_ID, BOS_ID, tokens[:-1])])
    batches, seen = train_batches(cache, CONTIGUOUS, seed=1), np.zeros(len(tokens), int)
    for number in range(2):
        for step in range(number * batches.batches, (number + 1) * batches.batches):
            batch, starts = batches.batch(step), batches.describe(step)["starts"]
            assert batch["targets"].shape == (3, 8)
            for row, start in enumerate(starts):
                piece = slice(start, start + 8)
                assert batch["targets"][row].tolist() == tokens[piece].tolist()
                assert batch["inputs"][row].tolist() == previous[piece].tolist()
                assert batch["positions"][row].tolist() == list(range(8))
                assert (batch["segments"][row] == 1).all()
                assert (batch["weights"][row] == 1).all()
                seen[piece] += 1
            for row in range(len(starts), 3):
                assert all(not array[row].any() for array in batch.values())
        assert set(seen.tolist()) <= {number, number + 1}
        assert (seen == number).sum() < 2 * 8
        seen[:] = number + 1


def test_packed_rows_contain_every_token_once(cache):
    tokens, _ = cache.stream()
    batches, found = train_batches(cache, PACKED, seed=1), []
    for batch in map(batches.batch, range(batches.batches)):
        for row in range(3):
            segments = batch["segments"][row]
            for segment in range(1, segments.max(initial=0) + 1):
                places = np.flatnonzero(segments == segment)
                assert batch["positions"][row, places].tolist() == list(range(len(places)))
                assert (batch["weights"][row, places] == 1).all()
                assert (
                    batch["inputs"][row, places[1:]].tolist() == batch["targets"][row, places[:-1]].tolist()
                )
                found.append(tuple(batch["targets"][row, places].tolist()))
            assert not batch["targets"][row, segments == 0].any()
    parts = split_documents(cache.stream()[1], 8)
    expected = [
        tuple(tokens[start : start + length].tolist()) for start, length, _ in zip(*parts, strict=True)
    ]
    assert sorted(found) == sorted(expected)
    assert sum(map(len, found)) == len(tokens)


@pytest.mark.parametrize("offset", range(8))
@pytest.mark.parametrize("size", [1, 7, 8, 14, 15, 16, 23, 40])
def test_rows_lie_within_the_stream(size, offset):
    parts = cut_stream(size, 8, offset, np.arange(count_rows(size, 8)))
    assert (parts.starts >= 0).all()
    assert (parts.starts + parts.lengths <= size).all()
    assert len(parts.starts) == max((size - 7) // 8, 1)
    assert len(set(parts.starts)) == len(parts.starts)


@pytest.mark.parametrize("size", [5, 8, 9, 14])
def test_short_stream_is_one_row_that_contains_each_token_in_some_epoch(size):
    rows = [cut_stream(size, 8, offset, np.arange(1)) for offset in range(8)]
    assert {tuple(parts.lengths) for parts in rows} == {(min(size, 8),)}
    seen = {start + i for parts in rows for start in parts.starts for i in range(min(size, 8))}
    assert seen == set(range(size))


def test_empty_stream_is_an_error():
    with pytest.raises(UserError, match="no token"):
        count_rows(0, 8)


@pytest.mark.parametrize("stride", [1, 3, 8])
@pytest.mark.parametrize("ends", [[5], [8], [9], [3, 25, 26, 60]])
def test_windows_score_each_token_once(ends, stride):
    ends = np.array(ends)
    windows = score_windows(ends, 8, stride)
    counted = np.zeros(ends[-1], int)
    starts_of_texts = [0, *ends[:-1]]
    for start, length, count in zip(*windows, strict=True):
        assert length <= 8
        text = np.searchsorted(ends, start, side="right")
        assert starts_of_texts[text] <= start < start + length <= ends[text]
        counted[start + length - count : start + length] += 1
        context = length - count
        assert context >= min(8 - stride, start + length - count - starts_of_texts[text])
    assert (counted == 1).all()
    sizes = np.diff(ends, prepend=0)
    assert len(windows.starts) == sum(1 + -(-np.maximum(sizes - 8, 0) // stride))  # as few as possible


def test_window_batches_contain_every_window():
    tokens = np.arange(3, 63)
    windows = score_windows(np.array([3, 25, 60]), 16, 5)
    found = []
    for chosen, batch in window_batches(tokens, windows, 40):
        assert batch["targets"].size <= 40
        for row, each in enumerate(zip(*chosen, strict=True)):
            start, length, counted = each
            assert batch["targets"][row, :length].tolist() == tokens[start : start + length].tolist()
            assert batch["weights"][row].sum() == counted
            assert batch["weights"][row, :length][length - counted :].all()
            found.append(each)
    assert sorted(found) == sorted(zip(*windows, strict=True))


def test_parts_are_assembled_side_by_side():
    parts = split_documents(np.array([3, 8]), 4).take(np.array([0, 2, 1]))
    batch = assemble(np.array([5, 6, EOS_ID, 7, 8, 9, 10, EOS_ID]), parts, np.array([2, 1]), (3, 5))
    assert batch["targets"].tolist() == [[5, 6, 2, 2, 0], [7, 8, 9, 10, 0], [0] * 5]
    assert batch["inputs"].tolist() == [[1, 5, 6, 10, 0], [1, 7, 8, 9, 0], [0] * 5]
    assert batch["segments"].tolist() == [[1, 1, 1, 2, 0], [1, 1, 1, 1, 0], [0] * 5]
    assert batch["positions"].tolist() == [[0, 1, 2, 0, 0], [0, 1, 2, 3, 0], [0] * 5]


@pytest.mark.parametrize(("texts", "warns"), [(["aaa", "aa"], True), (["aaa", "", "ab"], False)])
def test_documents_of_a_single_letter_give_a_warning(texts, warns, tmp_path, caplog):
    rows = hold([(text,) for text in texts], "texts")
    cache = TokenCache.open(rows, Characters(), str(tmp_path))
    with caplog.at_level("WARNING", "tfm"):
        train_batches(cache, CONTIGUOUS, seed=0)
    assert ("single token" in caplog.text) == warns


@pytest.mark.parametrize("count", [0, 1, 9, 10])
def test_batches_of_one_width_are_a_sequence_of_cuts(count):
    cuts = cut_batches([(8, count)], 24)
    expected = [Cut(first, min(first + 3, count), 3, 8) for first in range(0, count, 3)]
    assert list(cuts) == expected
    assert cuts[1:] == expected[1:]
    assert count_sizes(cuts) == ({(3, 8): len(expected)} if count else {})
    with pytest.raises(IndexError):
        cuts[len(expected)]
