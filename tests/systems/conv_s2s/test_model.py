"""Tests of ConvS2S against NumPy, and of its receptive field."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.cases import CONVOLUTIONAL
from tests.systems.conv_s2s.numpy_conv_s2s import conv_s2s
from tfm.errors import UserError
from tfm.layers.observe import read_attention
from tfm.systems.conv_s2s.model import ConvS2S, ConvS2SConfig, list_layers, scale_gradient
from tfm.testing.models import VOCABULARY, quick_jit
from tfm.testing.parameters import random_parameters

SOURCES, TARGETS = np.random.default_rng(0).integers(3, VOCABULARY, (2, 2, 6))
SOURCES[1, 4:] = 0


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_logits_and_attention_equal_numpy_sentence_by_sentence(name):
    model = CONVOLUTIONAL[name]
    params = random_parameters(model, SOURCES, TARGETS, deviation=0.5)

    @quick_jit
    def run(params):
        apply = functools.partial(model.apply, {"params": params}, SOURCES, TARGETS, train=False)
        return read_attention(model.attention_points["cross"], apply)

    found, attention = run(params)
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        source = source[source > 0]
        expected, weights = conv_s2s(model.config, params, source, target)
        np.testing.assert_allclose(found[row], expected, atol=2e-4)
        np.testing.assert_allclose(attention[:, row, 0, :, : len(source)], weights, atol=1e-5)


FIELD = ConvS2S(
    ConvS2SConfig(
        encoder="2x6/3,1x6/5", decoder="3x6/3", embedding_features=6, max_positions=16, dropout=0.0
    ),
    VOCABULARY,
)


@pytest.mark.long
def test_gradient_reaches_exactly_the_receptive_field():
    """Each encoder layer of kernel R sees (R - 1) / 2 positions more on each side, so that here 4 are seen.

    Without attention, the decoder sees 2 more positions before each position with each of its 3 layers.
    """
    rng = np.random.default_rng(1)
    tokens = rng.integers(3, VOCABULARY, (1, 12))
    params = random_parameters(FIELD, tokens, tokens, deviation=0.7)
    for attention in ("attentions_0", "attentions_1", "attentions_2"):
        params[attention]["output"] |= {"scale": jnp.zeros(6), "bias": jnp.zeros(6)}

    def encode(table):
        changed = {**params, "source_positions": {"table": table}}
        return FIELD.apply({"params": changed}, tokens, method="encode").keys[0]

    def decode(table):
        changed = {**params, "target_positions": {"table": table}}
        return FIELD.apply({"params": changed}, tokens, tokens, train=False)[0]

    distance = np.arange(12)[:, None] - np.arange(12)
    for compute, side, sees in (
        (encode, "source", np.abs(distance) <= 4),
        (decode, "target", (distance >= 0) & (distance <= 6)),
    ):
        gradient = quick_jit(jax.jacobian(compute))(params[f"{side}_positions"]["table"])
        reached = np.abs(gradient).sum((1, 3)) > 0
        np.testing.assert_array_equal(reached[:, :12], sees)


def test_gradient_of_the_encoder_output_is_scaled():
    value, gradient = jax.value_and_grad(lambda x: scale_gradient(x, 0.25) ** 2)(3.0)
    assert (value, gradient) == (9, 1.5)


@pytest.mark.parametrize("text", ["", "2x8", "0x8/3", "2x8/0", "2x8/3,", "x8/3"])
def test_layers_of_another_form_are_an_error(text):
    with pytest.raises(UserError, match=r"model\.encoder"):
        ConvS2SConfig(encoder=text)


def test_a_sequence_beyond_the_positions_is_an_error():
    tokens = np.ones((1, 13), int)
    with pytest.raises(ValueError, match=r"12.*model\.max_positions.*13"):
        jax.eval_shape(
            lambda: CONVOLUTIONAL["one width"].init(jax.random.key(0), tokens, tokens, train=False)
        )


def test_a_sequence_may_have_as_many_tokens_as_positions():
    tokens = np.ones((1, 12), int)
    model = CONVOLUTIONAL["one width"]
    logits = jax.eval_shape(lambda: model.init_with_output(jax.random.key(0), tokens, tokens, train=False)[0])
    assert logits.shape == (1, 12, VOCABULARY)


def test_published_size_is_the_default():
    """Section 4.2: 20 layers of 512 and kernel 3 in both stacks, embeddings of 512."""
    config = ConvS2SConfig()
    assert list_layers(config.encoder) == list_layers(config.decoder) == [(512, 3)] * 20
    assert config.embedding_features == 512
