"""Every mechanism that a field chooses: gradients, packed rows, causality and cached decoding of each."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.initialize import random_parameters
from tests.helpers.programs import FAST, decode_steps
from tfm import layers
from tfm.errors import UserError
from tfm.models import Transformer, TransformerConfig
from tfm.models.decoder_lm import DecoderLMConfig

BASE = TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=16, d_ff=24, heads=4, dropout=0.0)
OPTIONS = {
    **{f"positions {name}": {"positions": name} for name in layers.POSITIONS if name != "interleaved"},
    "relative bias, pre-norm": {"positions": "relative_bias", "norm_order": "pre"},
    "grouped keys and values": {"key_value_heads": 2},
    "one head of keys and values, rotary": {"key_value_heads": 1, "positions": "rotary"},
    "heads of full width": {"key_features": 16, "value_features": 16},
    "other value features": {"key_features": 6, "value_features": 3},
    "unscaled": {"scale_attention": False},
    "window": {"attention_window": 3},
    "GLU": {"gated": True, "activation": "sigmoid"},
    "SwiGLU": {"gated": True, "activation": "swish"},
    "RMSNorm, pre-norm": {"norm": "rms_norm", "norm_order": "pre"},
    "DeepNorm": {"deep_norm": True},
    "two tied": {"tied_embeddings": "two"},
    "none tied": {"tied_embeddings": "none"},
}
VOCABULARY, WIDTH, LENGTH, SWAP = 20, 2, 7, 3
RNG = np.random.default_rng(0)
INPUTS = RNG.integers(3, VOCABULARY, (2, LENGTH))
INPUTS[1, 4:] = 0
TOKENS = RNG.integers(3, VOCABULARY, (LENGTH, 2, WIDTH))  # of each step, row and hypothesis
# Before step SWAP the two hypotheses of a row change places, as beams do.
PARENTS = np.broadcast_to(np.arange(WIDTH), TOKENS.shape).copy()
PARENTS[SWAP - 1] = PARENTS[SWAP - 1, :, ::-1]
HISTORY = np.concatenate([TOKENS[:SWAP, :, ::-1], TOKENS[SWAP:]]).transpose(1, 2, 0)  # [2, WIDTH, LENGTH]
CHANGED = np.where(np.arange(LENGTH) < 4, HISTORY, 3 + HISTORY[..., ::-1] % 7)
PACKED, FIRST = np.array([[5, 6, 7, 8, 9, 10, 11]]), 3  # two sentences, the first of FIRST tokens
APART = np.array([[5, 6, 7, 0, 0, 0, 0], [8, 9, 10, 11, 0, 0, 0]])
PACKING = {
    f"{side}_{name}": np.array([values])
    for side in ("input", "target")
    for name, values in (("positions", [0, 1, 2, 0, 1, 2, 3]), ("segments", [1, 1, 1, 2, 2, 2, 2]))
}
# Of one program: the hypotheses, the same with other later tokens, and the sentences that are packed.
ROWS = np.concatenate([*[np.repeat(INPUTS, WIDTH, axis=0)] * 2, APART])
TARGETS = np.concatenate([HISTORY.reshape(-1, LENGTH), CHANGED.reshape(-1, LENGTH), APART])


class Result(NamedTuple):
    """Of one model: its gradient, and the logits that the tests compare."""

    gradient: dict
    forward: jax.Array
    changed: jax.Array
    apart: jax.Array
    packed: jax.Array
    cached: jax.Array


@functools.partial(jax.jit, static_argnums=0, compiler_options=FAST)
def run(model, params):
    def loss(params):
        logits = model.apply({"params": params}, ROWS, TARGETS, train=False)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), TARGETS[..., None], -1).mean(), logits

    gradient, logits = jax.grad(loss, has_aux=True)(params)
    packed = model.apply({"params": params}, PACKED, PACKED, train=False, **PACKING)
    cached = decode_steps.__wrapped__(model, params, INPUTS, TOKENS, PARENTS, LENGTH + 1)
    forward, changed, apart = jnp.split(logits, [2 * WIDTH, 4 * WIDTH])
    hypotheses = (2, WIDTH, *logits.shape[1:])
    return Result(
        gradient, forward.reshape(hypotheses), changed.reshape(hypotheses), apart, packed, cached
    )


@functools.cache
def result_of(**fields):
    model = Transformer(dataclasses.replace(BASE, **fields), VOCABULARY)
    return run(model, random_parameters(model, INPUTS, INPUTS))


@pytest.fixture(params=OPTIONS)
def result(request):
    return result_of(**OPTIONS[request.param])


def test_every_parameter_has_a_gradient(result):
    for path, gradient in jax.tree_util.tree_leaves_with_path(result.gradient):
        assert np.isfinite(gradient).all(), path
        assert gradient.any(), path


def test_each_option_changes_the_model(result):
    assert np.abs(result.forward - result_of().forward).max() > 1e-3


def test_cached_decoding_equals_the_forward_pass(result):
    found = np.array(result.cached).transpose(1, 2, 0, 3)  # [B, W, T, V]
    found[:, :, :SWAP] = found[:, ::-1, :SWAP]  # where each hypothesis was before
    np.testing.assert_allclose(found, result.forward, atol=2e-5)


def test_later_tokens_change_no_logits(result):
    np.testing.assert_array_equal(result.changed[:, :, :4], result.forward[:, :, :4])
    assert not np.allclose(result.changed[:, :, 4:], result.forward[:, :, 4:], atol=1e-3)


def test_packed_sentences_equal_each_alone(result):
    np.testing.assert_allclose(result.packed[0, :FIRST], result.apart[0, :FIRST], atol=2e-5)
    np.testing.assert_allclose(result.packed[0, FIRST:], result.apart[1, : LENGTH - FIRST], atol=2e-5)
