"""Tests of edits as functions of an array and its point."""

import jax.numpy as jnp
import numpy as np
import pytest

from tfm import interpret
from tfm.errors import UserError

VALUE = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)  # [B, L, H, K]
POSITIONS = {"L": jnp.array([[0, 1, 2], [2, 0, 1]])}
POINT = interpret.Point("decoder.layers_0.self_attention.query", "BLHK", np.arange(2), POSITIONS)
EDITS = {
    "head": (interpret.zero_head, interpret.scale_head),
    "neuron": (interpret.zero_neuron, interpret.scale_neuron),
    "position": (interpret.zero_position, interpret.scale_position),
}


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize(
    "several", [[2, 0], {0, 2}, (0, 2), np.array([2, 0]), jnp.array([[0], [2]])], ids=str
)
def test_several_indices_are_edited_at_once(name, several):
    zero, scale = EDITS[name]
    for edit, make_single in ((zero(several), zero), (scale(several, 3.0), lambda i: scale(i, 3.0))):
        one_by_one = make_single(2)(make_single(0)(VALUE, POINT), POINT)
        np.testing.assert_array_equal(edit(VALUE, POINT), one_by_one)
        assert (one_by_one != VALUE).any()


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("wrong", [{-1}, [], [0.5], np.array([True, False, True, False])], ids=str)
def test_invalid_indices_are_user_errors(name, wrong):
    with pytest.raises(UserError, match="from 0"):
        EDITS[name][0](wrong)(VALUE, POINT)


@pytest.mark.parametrize("name", ["head", "neuron"])
def test_indices_beyond_the_axis_are_user_errors(name):
    with pytest.raises(UserError, match=r"from 0 .*\[0 9\]"):
        EDITS[name][0]([0, 9])(VALUE, POINT)


@pytest.mark.long
def test_edits_of_positions_act_on_queries_unless_keys_are_chosen():
    positions = {"L": jnp.array([[0, 1, 2]]), "M": jnp.array([[0, 1, 2, 3]])}
    point = interpret.Point("decoder.layers_0.cross_attention.weights", "BHLM", np.arange(1), positions)
    weights = np.ones((1, 1, 3, 4), np.float32)
    queries, keys = np.array(weights), np.array(weights)
    queries[:, :, 1], keys[..., 1] = 0, 0
    for edit in (interpret.zero_position(1), interpret.scale_position(1, 0)):
        np.testing.assert_array_equal(edit(weights, point), queries)
    for edit in (interpret.zero_position(1, "M"), interpret.scale_position(1, 0, "M")):
        np.testing.assert_array_equal(edit(weights, point), keys)
