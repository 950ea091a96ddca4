"""Tests of the selection of the largest logits."""

import jax
import numpy as np
import pytest

from tfm.devices import backend
from tfm.search.top_k import largest, top_k, two_stage_top_k

LENGTHS = [7, 331, 1024, 7200]  # two stages are used for no k, all k (blocks of 1), k = 1, and all k


@pytest.mark.parametrize("values", [4, 1000])  # few values: most maxima occur several times
def test_largest_is_the_index_of_the_first_maximum(values):
    x = np.random.default_rng(0).integers(0, values, (3, 40, 17)).astype(np.float32)
    x[0, 0] = -np.inf
    np.testing.assert_array_equal(jax.jit(largest)(x), x.argmax(-1))


def test_largest_of_values_with_nan_is_an_index():
    assert 0 <= largest(np.float32([3, np.nan, 1])) < 3


@pytest.mark.long
@pytest.mark.parametrize("length", LENGTHS)
def test_two_stage_top_k_equals_top_k(length):
    x = np.random.default_rng(length).permutation(4 * length).reshape(4, length).astype(np.float32)
    for k in (1, 3, 7):
        values, tokens = two_stage_top_k(x, k)
        expected = np.argsort(-x)[:, :k]
        np.testing.assert_array_equal(tokens, expected)
        np.testing.assert_array_equal(values, np.take_along_axis(x, expected, axis=1))


@pytest.mark.long
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("levels", [1, 2, 40])
def test_ties_go_to_the_lowest_index(length, levels):
    """The rule also holds within selected blocks and in rows of -inf."""
    x = np.random.default_rng(length).integers(0, levels, (50, length)).astype(np.float32)
    x[0], x[1, 3:] = -np.inf, -np.inf
    for k in (1, 3, 7):
        values, tokens = two_stage_top_k(x, k)
        expected = np.argsort(-x, kind="stable")[:, :k]
        np.testing.assert_array_equal(tokens, expected)
        for one, other in zip((values, tokens), jax.lax.top_k(x, k), strict=True):
            np.testing.assert_array_equal(one, other)


def test_ties_of_blocks_go_to_the_lowest_index():
    """The block with the larger index has the larger maximum and is selected first."""
    block = 240  # block size for 7,200 logits
    x = np.full(7200, -1, np.float32)
    x[5 * block + np.array([1, 2])] = 9, 7
    x[2 * block + np.array([1, 2])] = 8, 7
    _, tokens = two_stage_top_k(x, 3)
    assert tokens.tolist() == [5 * block + 1, 2 * block + 1, 2 * block + 2]


@pytest.mark.parametrize("is_cpu", [False, True])
def test_two_stages_are_used_only_on_cpus(is_cpu, monkeypatch):
    monkeypatch.setattr(backend, "is_cpu", lambda: is_cpu)
    jaxpr = jax.make_jaxpr(lambda x: top_k(x, 2))(np.zeros((3, 7200), np.float32))
    assert str(jaxpr).count("= top_k[") == (2 if is_cpu else 1)
