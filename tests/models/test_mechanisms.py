"""Every mechanism that a field chooses: gradients, packed rows, causality and cached decoding of each."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.initialize import random_parameters
from tests.support.programs import FAST, decode_steps
from tfm import interpret, layers
from tfm.attention import masked_softmax
from tfm.errors import UserError
from tfm.models import Transformer, TransformerConfig
from tfm.models.decoder_lm import DecoderLMConfig

BASE = TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=16, d_ff=24, heads=4, dropout=0.0)
OPTIONS = {
    **{f"positions {name}": {"positions": name} for name in layers.POSITIONS if name != "interleaved"},
    "unscaled": {"scale_attention": False},
    "window": {"attention_window": 3},
    "DeepNorm": {"deep_norm": True},
    # What changes the parameters, of which tests/test_memory_estimate.py counts each.
    "heads of full width, T5": {"key_features": 16, "value_features": 16, "positions": "relative_bias"},
    "grouped keys and values, RMSNorm, SwiGLU": {
        "key_value_heads": 2,
        "norm": "rms_norm",
        "norm_order": "pre",
        "gated": True,
        "activation": "swish",
        "tied_embeddings": "two",
    },
    "shared keys and values, rotary, GLU, none tied": {
        "key_value_heads": 1,
        "positions": "rotary",
        "gated": True,
        "activation": "sigmoid",
        "tied_embeddings": "none",
    },
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
    return Result(gradient, forward.reshape(hypotheses), changed.reshape(hypotheses), apart, packed, cached)


@functools.cache
def result_of(**fields):
    model = Transformer(dataclasses.replace(BASE, **fields), VOCABULARY)
    return run(model, random_parameters(model, INPUTS, INPUTS))


@pytest.fixture(params=OPTIONS)
def result(request):
    return result_of(**OPTIONS[request.param])


@pytest.mark.long
def test_every_parameter_has_a_gradient(result):
    for path, gradient in jax.tree_util.tree_leaves_with_path(result.gradient):
        assert np.isfinite(gradient).all(), path
        assert gradient.any(), path


@pytest.mark.long
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


@pytest.mark.long
def test_remat_and_scan_change_no_gradient():
    fields = {"positions": "relative_bias"}
    plain, scanned = (result_of(**fields, **how).gradient for how in ({}, {"remat": True, "scan": True}))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), scanned, plain)


@pytest.mark.long
def test_logits_that_are_read_hold_scale_and_bias():
    config = dataclasses.replace(BASE, positions="relative_keys", key_value_heads=2, scale_attention=False)
    model = Transformer(config, VOCABULARY)
    params = random_parameters(model, INPUTS, INPUTS)

    @functools.partial(jax.jit, compiler_options=FAST)
    def read(params):
        names = [f"decoder.layers_0.mixer.{name}" for name in ("logits", "weights")]
        output, reads = interpret.run(model, params, INPUTS, INPUTS, read=names)
        return (
            output,
            *(reads[name] for name in names),
            model.apply({"params": params}, INPUTS, INPUTS, train=False),
        )

    output, logits, weights, expected = read(params)
    np.testing.assert_allclose(output, expected, atol=1e-5)
    causal = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    np.testing.assert_allclose(weights, masked_softmax(logits, causal), atol=1e-5)


def encode(params, inputs, model):
    return jax.jit(lambda inputs: model.apply({"params": params}, inputs, method="encode"))(inputs)


@pytest.mark.long
@pytest.mark.parametrize(
    ("positions", "equivariant"), [("none", True), ("interleaved", False), ("alibi", False)]
)
def test_no_positions_is_permutation_equivariant(positions, equivariant):
    model = Transformer(dataclasses.replace(BASE, positions=positions), VOCABULARY)
    params = random_parameters(model, INPUTS, INPUTS)
    order = np.array([4, 0, 6, 2, 5, 1, 3])
    memory, permuted = (encode(params, inputs, model) for inputs in (INPUTS[:1], INPUTS[:1, order]))
    assert np.allclose(permuted, memory[:, order], atol=1e-5) == equivariant


@pytest.mark.long
@pytest.mark.parametrize("positions", ["rotary", "relative_keys", "relative_bias", "alibi"])
def test_relative_positions_ignore_the_offset(positions):
    model = Transformer(dataclasses.replace(BASE, positions=positions), VOCABULARY)
    params = random_parameters(model, INPUTS, INPUTS)

    @functools.partial(jax.jit, compiler_options=FAST)
    def apply(start):
        where = start + jnp.broadcast_to(jnp.arange(LENGTH), INPUTS.shape)
        both = {"input_positions": where, "target_positions": where}
        return model.apply({"params": params}, INPUTS, INPUTS, train=False, **both)

    np.testing.assert_allclose(apply(50), apply(0), atol=1e-4)


@pytest.mark.long
def test_each_position_sees_its_window_alone():
    """Through one layer a token reaches (r - 1) / 2 positions on each side."""
    model = Transformer(dataclasses.replace(BASE, attention_window=3), VOCABULARY)
    params = random_parameters(model, INPUTS, INPUTS)
    other = INPUTS[:1].copy()
    other[0, 3] = 3 + other[0, 3] % 7
    reached = np.abs(encode(params, INPUTS[:1], model) - encode(params, other, model)).max(-1) > 0
    np.testing.assert_array_equal(reached[0], [False, False, True, True, True, False, False])


@pytest.mark.long
def test_decoder_has_no_buckets_of_the_future():
    """All 32 buckets of a decoder are of earlier positions, 16 of one distance each; in the encoder 8 are."""
    model = Transformer(dataclasses.replace(BASE, positions="relative_bias"), VOCABULARY)
    params = random_parameters(model, INPUTS, INPUTS)

    @functools.partial(jax.jit, compiler_options=FAST)
    @jax.grad
    def differentiate(params):
        where = 2 * jnp.broadcast_to(jnp.arange(LENGTH), (1, LENGTH))
        both = {"input_positions": where, "target_positions": where}
        logits = model.apply({"params": params}, INPUTS[:1], INPUTS[:1], train=False, **both)
        return (logits**2).sum()

    gradient = differentiate(params)
    used = {
        stack: np.flatnonzero(np.abs(gradient[stack]["layers_0"]["mixer"]["position_bias"]["biases"]).max(-1))
        for stack in ("encoder", "decoder")
    }
    np.testing.assert_array_equal(used["decoder"], [0, 2, 4, 6, 8, 10, 12])
    np.testing.assert_array_equal(used["encoder"], [0, 2, 4, 6, 8, 9, 18, 20, 22, 24, 25])


@functools.partial(jax.jit, static_argnums=0, compiler_options=FAST)
def initialize(model):
    return model.init(jax.random.key(0), INPUTS, INPUTS, train=False)["params"]


@pytest.mark.long
def test_deep_norm_begins_smaller():
    """Kernels of values, of outputs and of the feed-forward network, by beta of their stack; no other."""
    plain, deep = (
        initialize(Transformer(dataclasses.replace(BASE, deep_norm=deep), VOCABULARY))
        for deep in (False, True)
    )
    beta = {"encoder": 0.87, "decoder": 12**-0.25}
    for path, kernel in jax.tree_util.tree_leaves_with_path(plain):
        names = [key.key for key in path]
        scaled = names[-1] == "kernel" and names[-2] in ("value", "output", "hidden")
        found = functools.reduce(lambda tree, name: tree[name], names, deep)
        np.testing.assert_allclose(found, (beta[names[0]] if scaled else 1) * kernel, rtol=1e-5)


class OwnFeedForward(Transformer):
    """One without a way to scale its initialization."""

    def make_feed_forward(self):
        return layers.Dropout(0.1)


@pytest.mark.long
def test_deep_norm_of_other_sublayers_is_an_error():
    model = OwnFeedForward(dataclasses.replace(BASE, deep_norm=True), VOCABULARY)
    with pytest.raises(UserError, match=r"a method scale_initialization.*the feed_forward is a Dropout"):
        model.init(jax.random.key(0), INPUTS, INPUTS, train=False)


@pytest.mark.long
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"positions": "rotary", "key_features": 3}, "'rotary' needs even key features, got 3"),
        ({"key_value_heads": 3}, r"model\.key_value_heads must divide model\.heads 4, got 3"),
        ({"deep_norm": True, "norm_order": "pre"}, r"deep_norm needs model\.norm_order 'post', got 'pre'"),
        ({"positions": "alibi", "attention": "cudnn"}, "'cudnn' is not for positions that add to the logits"),
        ({"attention_window": 0}, r"model\.attention_window must be from 1"),
    ],
)
@pytest.mark.parametrize("config", [BASE, DecoderLMConfig(heads=4, d_model=16)])
def test_senseless_combinations_are_errors(config, fields, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(config, **fields)
