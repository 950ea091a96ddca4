"""Encoder and decoder layers against NumPy in float64; their parameters and dropout."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.references import numpy_transformer as numpy64
from tests.support.layer_cases import B, D, F, L, M, attention, causal, count, noisy, random
from tfm import layers


@pytest.mark.long
@pytest.mark.parametrize("order", layers.NORM_ORDERS)
def test_encoder_and_decoder_layer_against_numpy(order):
    def residual():
        return layers.Residual(order)

    x, memory = random(B, L, D), random(B, M, D, seed=1)
    mask, source_mask = causal(), np.random.default_rng(3).random((B, 1, 1, M)) < 0.8
    encoder = layers.Layer(attention(), layers.FeedForward(D, F), residual=residual)
    params = noisy(encoder.init(jax.random.key(0), x, mask=mask, train=False))
    found = encoder.apply({"params": params}, x, mask=mask, train=False)
    np.testing.assert_allclose(found, numpy64.encoder_layer(params, x, mask, order), atol=2e-5)

    decoder = layers.Layer(attention(), layers.FeedForward(D, F), attention(), residual)
    masks = {"mask": mask, "source_mask": source_mask, "train": False}
    params = noisy(decoder.init(jax.random.key(0), x, memory, **masks))
    found = decoder.apply({"params": params}, x, memory, **masks)
    expected = numpy64.decoder_layer(params, x, memory, mask, source_mask, order)
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_parameter_counts_of_one_layer():
    x, masks = jnp.zeros((1, 3, 512)), {"mask": None, "train": False}

    def paper_attention():
        return layers.MultiHeadAttention(512, 8, use_bias=True)

    encoder = layers.Layer(paper_attention(), layers.FeedForward(512, 2048))
    decoder = layers.Layer(paper_attention(), layers.FeedForward(512, 2048), paper_attention())
    assert count(encoder, x, **masks) == 3_152_384
    assert count(decoder, x, x, source_mask=None, **masks) == 4_204_032


class Average(nn.Module):
    """Replaces self-attention by the mean of all positions."""

    @nn.compact
    def __call__(self, x, keys, *, mask, train, **positions):
        return jnp.broadcast_to(keys.mean(1, keepdims=True), x.shape)


def test_self_attention_is_an_argument():
    module = layers.Layer(self_attention=Average(), feed_forward=layers.FeedForward(D, F))
    x = random(B, L, D)
    variables = module.init(jax.random.key(0), x, mask=None, train=False)
    assert "self_attention" not in variables["params"]
    shuffled = module.apply(variables, x[:, ::-1], mask=None, train=False)
    np.testing.assert_allclose(
        shuffled[:, ::-1], module.apply(variables, x, mask=None, train=False), atol=1e-5
    )


@pytest.mark.long
def test_dropout_is_active_only_in_training():
    module = layers.Layer(
        attention(dropout_rate=0.5),
        layers.FeedForward(D, F, dropout_rate=0.5),
        residual=lambda: layers.Residual("post", 0.5),
    )
    x = random(B, L, D)
    variables = module.init(jax.random.key(0), x, mask=None, train=False)

    def run(seed, train=True):
        return module.apply(variables, x, mask=None, train=train, rngs={"dropout": jax.random.key(seed)})

    assert not np.allclose(run(0), run(1))
    np.testing.assert_array_equal(run(0), run(0))
    np.testing.assert_array_equal(run(0, train=False), run(1, train=False))
