"""Tests of the cells and segments of recurrent models. test_equations.py compares whole models."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.cases import RNNS
from tfm.data.tokenizers.protocol import EOS_ID
from tfm.decoding.config import DecodingConfig
from tfm.decoding.score import attend_pairs
from tfm.decoding.translate import translate_ids
from tfm.errors import UserError
from tfm.systems.lstm_lm.cells import GRUCell, LSTMCell, segment_begins
from tfm.systems.rnn_seq2seq.config import INITIALIZATIONS
from tfm.systems.rnn_seq2seq.model import last_read
from tfm.testing.models import quick_jit
from tfm.testing.parameters import random_parameters

SOURCES = [[3, 9, 4, 4, 12, 7, EOS_ID], [5, 3, EOS_ID], [8, 14, 6, 3, EOS_ID]]
TOKEN = np.ones((1, 1), int)


@pytest.mark.long
def test_gru_resets_the_state_before_its_matrix_unlike_flax():
    cell = GRUCell(4, INITIALIZATIONS["glorot"])
    h, x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    params = quick_jit(cell.init)(jax.random.key(0), h, x)["params"]
    w, u = np.split(params["input"]["kernel"], 3, 1), np.split(params["recurrent_gates"]["kernel"], 2, 1)
    zeros = np.zeros(4, np.float32)
    flax = {f"i{gate}": {"kernel": kernel, "bias": zeros} for gate, kernel in zip("rzn", w, strict=True)}
    flax |= {f"h{gate}": {"kernel": kernel} for gate, kernel in zip("rz", u, strict=True)}
    flax["hn"] = {"kernel": params["recurrent_candidate"]["kernel"], "bias": zeros}
    # The update gate of Flax keeps the state where the gate of the paper replaces it.
    flax["iz"], flax["hz"] = {"kernel": -w[1], "bias": zeros}, {"kernel": -u[1]}

    @quick_jit
    def outputs(h):
        theirs, _ = nn.GRUCell(4).apply({"params": flax}, h, x)
        return cell.apply({"params": params}, h, x)[0], theirs

    np.testing.assert_allclose(*outputs(np.zeros_like(h)), atol=1e-6)
    assert np.abs(np.subtract(*outputs(h))).max() > 1e-2


@pytest.mark.long
def test_lstm_equals_that_of_flax_with_a_constant_in_the_forget_gate():
    cell = LSTMCell(4, INITIALIZATIONS["glorot"], forget_bias=1.5)
    state = tuple(np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32))
    x = np.ones((3, 2), np.float32)
    params = quick_jit(cell.init)(jax.random.key(0), state, x)["params"]
    assert not params["input"]["bias"].any()
    w, u = (np.split(params[name]["kernel"], 4, axis=1) for name in ("input", "recurrent"))
    flax = {f"i{gate}": {"kernel": kernel} for gate, kernel in zip("ifgo", w, strict=True)}
    for gate, kernel in zip("ifgo", u, strict=True):
        flax[f"h{gate}"] = {"kernel": kernel, "bias": np.full(4, 1.5 * (gate == "f"), np.float32)}
    expected, _ = quick_jit(nn.OptimizedLSTMCell(4).apply)({"params": flax}, state, x)
    found, _ = quick_jit(cell.apply)({"params": params}, state, x)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_segments_begin_at_their_first_token_and_end_where_they_are_read_last():
    inputs, targets = jnp.array([[1, 1, 2, 2, 2, 0]]), jnp.array([[1, 2, 2, 0]])
    assert segment_begins(inputs)[0].tolist() == [True, False, True, False, False, True]
    assert last_read(targets, inputs, backwards=False)[0].tolist() == [1, 4, 4, 5]
    assert last_read(targets, inputs, backwards=True)[0].tolist() == [0, 2, 2, 5]


@pytest.mark.parametrize("call", [attend_pairs, translate_ids])
def test_alignments_and_coverage_without_attention_are_errors(call):
    model, config = RNNS["no attention"], DecodingConfig(coverage_penalty=0.1)
    params = random_parameters(model, TOKEN, TOKEN)
    assert model.attention_points == {}
    arguments = (SOURCES, SOURCES, config) if call is attend_pairs else (SOURCES, config)
    with pytest.raises(UserError, match=r"model\.attention is 'none'"):
        call(model, params, *arguments)


@pytest.mark.long
def test_coverage_penalty_lowers_the_score():
    model, config = RNNS["Luong"], DecodingConfig(length_penalty=0.0, beam_size=2, max_extra_tokens=2)
    params = random_parameters(model, TOKEN, TOKEN, deviation=0.7)
    plain, covered = (
        translate_ids(model, params, SOURCES, dataclasses.replace(config, coverage_penalty=penalty))
        for penalty in (0.0, 0.2)
    )
    assert any(one[0].score < other[0].score for one, other in zip(covered, plain, strict=True))
