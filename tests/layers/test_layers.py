"""Layers against the same mathematics in NumPy float64, and as parts that can be put together anew."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import numpy_transformer as numpy64
from tfm import layers

B, L, M, D, F, H = 2, 5, 6, 8, 12, 2


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def causal():
    return np.tril(np.ones((L, L), bool))[None, None]


def attention(**fields):
    return layers.MultiHeadAttention(D, H, **fields)


def noisy(variables, seed=1):
    """Parameters with noise on top, so that biases and scales are not zeros and ones."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: x + 0.3 * rng.normal(size=x.shape).astype(np.float32), variables["params"])


def count(module, *arguments, **keywords):
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), *arguments, **keywords))
    return sum(x.size for x in jax.tree.leaves(shapes["params"]))


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("features", [{}, {"key_features": 3, "value_features": 5}])
def test_multi_head_attention_against_numpy(use_bias, features):
    module = attention(use_bias=use_bias, **features)
    x, memory = random(B, L, D), random(B, M, D, seed=1)
    mask = np.random.default_rng(2).random((B, 1, L, M)) < 0.7
    params = noisy(module.init(jax.random.key(0), x, memory, mask=mask, train=False))
    found = module.apply({"params": params}, x, memory, mask=mask, train=False)
    np.testing.assert_allclose(found, numpy64.attention(params, x, memory, mask), atol=1e-5)


def test_multi_head_attention_against_flax():
    module, flax_module = attention(use_bias=True), nn.MultiHeadDotProductAttention(num_heads=H)
    x, memory = random(B, L, D), random(B, M, D, seed=1)
    params = noisy(module.init(jax.random.key(0), x, memory, mask=None, train=False))
    renamed = {("out" if name == "output" else name): value for name, value in params.items()}
    expected = flax_module.apply({"params": renamed}, x, memory)
    found = module.apply({"params": params}, x, memory, mask=None, train=False)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "swish", jnp.tanh])
def test_feed_forward_is_equation_2(activation):
    module, x = layers.FeedForward(D, F, activation), random(B, L, D)
    params = noisy(module.init(jax.random.key(0), x, train=False))
    hidden = np.asarray(x, np.float64) @ params["hidden"]["kernel"] + params["hidden"]["bias"]
    hidden = np.asarray(layers.ACTIVATIONS.get(activation, activation)(hidden))
    expected = hidden @ params["output"]["kernel"] + params["output"]["bias"]
    np.testing.assert_allclose(module.apply({"params": params}, x, train=False), expected, atol=1e-5)


def test_gelu_is_exact_and_gelu_tanh_its_approximation():
    x = np.linspace(-4, 4, 81)
    exact = [value * 0.5 * (1 + math.erf(value / 2**0.5)) for value in x]
    tanh = 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(layers.ACTIVATIONS["gelu"](x), exact, atol=1e-6)
    np.testing.assert_allclose(layers.ACTIVATIONS["gelu_tanh"](x), tanh, atol=1e-6)
    assert np.abs(exact - tanh).max() > 1e-4


@pytest.mark.parametrize("order", layers.NORM_ORDERS)
def test_residual_orders(order):
    module, x = layers.Residual(order), random(B, L, D)

    def sublayer(x):
        return 3 * x**2

    params = noisy(module.init(jax.random.key(0), x, sublayer, train=False))
    found = module.apply({"params": params}, x, sublayer, train=False)
    np.testing.assert_allclose(found, numpy64.residual(params, x, sublayer, order), atol=1e-5)


def test_an_unknown_order_is_refused():
    with pytest.raises(ValueError, match="order must be one of"):
        layers.Residual("sandwich").init(jax.random.key(0), random(1, D), lambda x: x, train=False)


@pytest.mark.parametrize("order", layers.NORM_ORDERS)
def test_encoder_and_decoder_layer_against_numpy(order):
    def residual():
        return layers.Residual(order)

    x, memory = random(B, L, D), random(B, M, D, seed=1)
    mask, memory_mask = causal(), np.random.default_rng(3).random((B, 1, 1, M)) < 0.8
    encoder = layers.EncoderLayer(attention(), layers.FeedForward(D, F), residual)
    params = noisy(encoder.init(jax.random.key(0), x, mask=mask, train=False))
    found = encoder.apply({"params": params}, x, mask=mask, train=False)
    np.testing.assert_allclose(found, numpy64.encoder_layer(params, x, mask, order), atol=2e-5)

    decoder = layers.DecoderLayer(attention(), attention(), layers.FeedForward(D, F), residual)
    masks = {"mask": mask, "memory_mask": memory_mask, "train": False}
    params = noisy(decoder.init(jax.random.key(0), x, memory, **masks))
    found = decoder.apply({"params": params}, x, memory, **masks)
    expected = numpy64.decoder_layer(params, x, memory, mask, memory_mask, order)
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_parameters_of_one_layer_are_the_papers():
    x, masks = jnp.zeros((1, 3, 512)), {"mask": None, "train": False}

    def paper_attention():
        return layers.MultiHeadAttention(512, 8, use_bias=True)

    encoder = layers.EncoderLayer(paper_attention(), layers.FeedForward(512, 2048))
    decoder = layers.DecoderLayer(paper_attention(), paper_attention(), layers.FeedForward(512, 2048))
    assert count(encoder, x, **masks) == 3_152_384
    assert count(decoder, x, x, memory_mask=None, **masks) == 4_204_032


def test_embedding_is_scaled_tied_and_initialised_by_its_width():
    module, tokens = layers.Embedding(5000, 64), np.array([[3, 4999, 0]])
    variables = module.init(jax.random.key(0), tokens)
    table = np.asarray(variables["params"]["table"])
    assert abs(table.std() - 64**-0.5) < 0.01 * 64**-0.5
    np.testing.assert_allclose(module.apply(variables, tokens), table[tokens] * 8, rtol=1e-6)
    x = random(2, 3, 64)
    np.testing.assert_allclose(module.apply(variables, x, method="logits"), x @ table.T, atol=1e-5)


def test_kernels_are_glorot_uniform():
    """Over the flattened [D, H * K] matrix: uniform in +- sqrt(6 / (D + H K))."""
    module = layers.MultiHeadAttention(64, 4, key_features=32, value_features=32)
    kernel = module.init(
        jax.random.key(0), jnp.zeros((1, 2, 64)), jnp.zeros((1, 2, 64)), mask=None, train=False
    )
    for name, fans in (("query", 64 + 128), ("output", 64 + 128)):
        values = np.asarray(kernel["params"][name]["kernel"])
        limit = np.sqrt(6 / fans)
        assert 0.98 * limit < np.abs(values).max() <= limit
        assert abs(values.std() - limit / np.sqrt(3)) < 0.02 * limit


class Average(nn.Module):
    """A mixer of one line: the mean of all positions."""

    @nn.compact
    def __call__(self, x, memory, *, mask, train, **positions):
        return jnp.broadcast_to(memory.mean(1, keepdims=True), x.shape)


def test_another_mixer_is_another_argument():
    module = layers.EncoderLayer(mixer=Average(), feed_forward=layers.FeedForward(D, F))
    x = random(B, L, D)
    variables = module.init(jax.random.key(0), x, mask=None, train=False)
    assert "mixer" not in variables["params"]
    shuffled = module.apply(variables, x[:, ::-1], mask=None, train=False)
    np.testing.assert_allclose(
        shuffled[:, ::-1], module.apply(variables, x, mask=None, train=False), atol=1e-5
    )


def test_dropout_is_on_only_in_training():
    module = layers.EncoderLayer(
        attention(dropout_rate=0.5),
        layers.FeedForward(D, F, dropout_rate=0.5),
        lambda: layers.Residual("post", 0.5),
    )
    x = random(B, L, D)
    variables = module.init(jax.random.key(0), x, mask=None, train=False)

    def run(seed, train=True):
        return module.apply(variables, x, mask=None, train=train, rngs={"dropout": jax.random.key(seed)})

    assert not np.allclose(run(0), run(1))
    np.testing.assert_array_equal(run(0), run(0))
    np.testing.assert_array_equal(run(0, train=False), run(1, train=False))


def test_heads_that_do_not_divide_the_model_are_refused():
    with pytest.raises(ValueError, match="do not divide"):
        layers.MultiHeadAttention(10, 4).init(
            jax.random.key(0), random(1, 2, 10), random(1, 2, 10), mask=None, train=False
        )
