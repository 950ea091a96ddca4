"""Tests of replacements as functions of an array and its point."""

import jax.numpy as jnp
import numpy as np
import pytest

from tfm import interpret

VALUE = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)  # [B, L, D]


def point(axes, rows=(0, 1), **positions):
    """Returns a point with the positions {letter: [B, n]}."""
    arrays = {letter: jnp.array(each) for letter, each in positions.items()}
    return interpret.Point("decoder.output", axes, np.array(rows), arrays)


def test_replacement_of_equal_length_replaces_all_positions_in_order():
    """This holds for packed rows, too, whose positions restart at 0."""
    new = VALUE + 1
    replaced = interpret.replace_with(new)(VALUE, point("BLD", L=[[0, 0, 1], [0, 1, 2]]))
    np.testing.assert_array_equal(replaced, new)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_replacement_of_another_length_replaces_positions_by_number(length):
    rng = np.random.default_rng(1)
    new = rng.normal(size=(2, length, 4)).astype(np.float32)
    positions = [[0, 1, 2], [4, 0, 1]]
    replaced = interpret.replace_with(new)(VALUE, point("BLD", L=positions))
    for row, column in np.ndindex(2, 3):
        position = positions[row][column]
        expected = new[row, position] if position < length else VALUE[row, column]
        np.testing.assert_array_equal(replaced[row, column], expected)


@pytest.mark.parametrize("position", [0, 1, 3])
def test_cached_step_uses_its_position_of_a_replacement(position):
    rng = np.random.default_rng(1)
    for length in (1, 2):
        new = rng.normal(size=(2, length, 4)).astype(np.float32)
        step = VALUE[:, :1]
        replaced = interpret.replace_with(new)(step, point("BLD", L=[[position]] * 2))
        expected = new[:, position : position + 1] if position < length else step
        np.testing.assert_array_equal(replaced, expected)


def test_replaced_weights_of_missing_keys_become_zero():
    rng = np.random.default_rng(1)
    weights = rng.random((2, 1, 3)).astype(np.float32)  # [B, L, M]
    new = rng.random((2, 1, 2)).astype(np.float32)
    at = point("BLM", L=[[0]] * 2, M=[[0, 1, 2]] * 2)
    replaced = interpret.replace_with(new)(weights, at)
    np.testing.assert_array_equal(replaced, np.pad(new, ((0, 0), (0, 0), (0, 1))))


def test_replacement_has_a_row_for_each_sentence_or_a_single_row_for_all():
    rng = np.random.default_rng(1)
    new = rng.normal(size=(2, 3, 4)).astype(np.float32)
    at = point("BLD", rows=(1, 1), L=[[0, 1, 2]] * 2)
    np.testing.assert_array_equal(interpret.replace_with(new)(VALUE, at), new[[1, 1]])
    np.testing.assert_array_equal(interpret.replace_with(new[:1])(VALUE, at), new[[0, 0]])
