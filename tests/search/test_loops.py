"""Tests of the functions with which a search continues some of its rows in a state of another size."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.references.search_reference import make_limits
from tests.support.automaton import EOS, STATES, VOCABULARY, begin, step
from tfm import search
from tfm.search.loops import put_rows, resize, take_rows
from tfm.testing.models import quick_jit

TREE = {"leaf": jnp.arange(12.0).reshape(4, 3), "scalar": jnp.int32(7)}


def test_rows_that_are_taken_and_put_back_change_nothing():
    rows = jnp.array([3, 1])
    taken = take_rows(TREE, rows)
    np.testing.assert_array_equal(taken["leaf"], TREE["leaf"][np.array([3, 1])])
    assert taken["scalar"] == 7
    np.testing.assert_array_equal(put_rows(TREE, rows, taken)["leaf"], TREE["leaf"])


def test_number_of_rows_fills_up_a_part_and_replaces_no_row():
    rows = jnp.array([1, 4, 4])
    taken = take_rows(TREE, rows)
    np.testing.assert_array_equal(taken["leaf"][1:], TREE["leaf"][np.array([3, 3])])
    put = put_rows(TREE, rows, {"leaf": taken["leaf"] + 100, "scalar": jnp.int32(9)})
    np.testing.assert_array_equal(put["leaf"] - TREE["leaf"], [[0] * 3, [100] * 3, [0] * 3, [0] * 3])
    assert put["scalar"] == 7


@pytest.mark.parametrize("sizes", [(2, 5), (7, 2), (3, 4)])
def test_resized_state_keeps_its_values_and_has_zeros_in_new_places(sizes):
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    resized = np.asarray(resize({"x": x}, {"x": np.zeros((9, *sizes))})["x"])
    kept = tuple(map(min, x.shape[1:], sizes))
    assert resized.shape == (2, *sizes)
    np.testing.assert_array_equal(resized[:, : kept[0], : kept[1]], x[:, : kept[0], : kept[1]])
    assert np.count_nonzero(resized) == 2 * kept[0] * kept[1]


def count_rows(run_loop, limits):
    """Returns the number of rows that greedy search computes in all steps for outputs of these lengths."""
    counts = []

    def counting_step(tokens, state, position):
        jax.debug.callback(lambda: counts.append(len(tokens)))
        return step(tokens, state, position)

    table = np.full((len(limits), STATES, VOCABULARY), 0.0, np.float32)
    table[:, :, EOS] = -60
    state = begin(table, 1)
    if run_loop is search.run_in_stages:
        run_loop = functools.partial(run_loop, steps=3, part_size=2, short_state=state)
    limits = make_limits(5, np.array(limits))
    options = {"batch_size": len(table), "run_loop": run_loop}
    quick_jit(lambda: search.greedy_search(counting_step, state, limits, **options))()
    jax.effects_barrier()
    return sum(counts)


@pytest.mark.parametrize(
    ("limits", "together", "in_stages"),
    [
        ([1, 2, 2, 5, 1, 4, 2, 1], 5 * 8, 2 * 8 + 3 * 2),  # two rows remain after two steps
        ([5, 5, 5, 5, 5, 1, 1, 1], 5 * 8, 3 * 8 + 3 * 2 * 2),  # three parts after three steps
        ([1, 1, 1, 1], 1 * 4, 1 * 4),
        ([2, 2], 2 * 2, 2 * 2),  # one part from the start
    ],
)
def test_stages_compute_only_unfinished_rows(limits, together, in_stages):
    assert count_rows(search.run_together, limits) == together
    assert count_rows(search.run_in_stages, limits) == in_stages
