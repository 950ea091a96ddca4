"""Tests of the feed-forward network, its convolutions and its activations against NumPy in float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.references.numpy_transformer import convolve, wide
from tests.support.layer_cases import B, D, F, L, noisy, random
from tfm import layers
from tfm.layers.neighbours import gather_by_mask
from tfm.masks import AttentionMask


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


SEGMENTS = np.array([[1, 1, 2, 2, 2], [1, 1, 1, 0, 0]])
FUNCTIONS = {"relu": lambda x: np.maximum(x, 0), "swish": lambda x: x * sigmoid(x), "sigmoid": sigmoid}


@pytest.mark.parametrize("activation", [*FUNCTIONS, jnp.tanh])
@pytest.mark.parametrize("gated", [False, True])
def test_feed_forward_is_equation_2_with_an_optional_gate(activation, gated):
    """The gated networks are the GLU and the SwiGLU of Shazeer 2020."""
    module, x = layers.FeedForward(D, F, activation, gated=gated), random(B, L, D)
    params = noisy(module.init(jax.random.key(0), x, train=False))

    def project(name, x):
        return x @ wide(params[name]["kernel"]) + wide(params[name]["bias"])

    hidden = FUNCTIONS.get(activation, np.tanh)(project("hidden", wide(x)))
    expected = project("output", hidden * project("gate", wide(x)) if gated else hidden)
    np.testing.assert_allclose(module.apply({"params": params}, x, train=False), expected, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("kernel", "gated"), [(3, False), (6, True)])
def test_wider_kernels_are_convolutions_within_each_sentence(kernel, gated, causal):
    module, x = layers.FeedForward(D, F, "swish", gated=gated, kernel=kernel), random(B, L, D)
    gather = gather_by_mask(AttentionMask(SEGMENTS, SEGMENTS, causal=causal), x.shape, kernel)
    params = noisy(module.init(jax.random.key(0), x, gather=gather, train=False))
    mask = (SEGMENTS[:, None, :, None] == SEGMENTS[:, None, None]) & (SEGMENTS > 0)[:, None, None]
    first = 1 - kernel if causal else -(kernel // 2)

    def project(name, x):
        return convolve(params[name], x, mask, first)

    hidden = FUNCTIONS["swish"](project("hidden", x))
    expected = project("output", hidden * project("gate", x) if gated else hidden)
    found = module.apply({"params": params}, x, gather=gather, train=False)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_initial_kernels_of_convolutions_are_glorot_uniform():
    """Glorot's formula counts the positions of a kernel among the inputs and among the outputs."""
    module, x = layers.FeedForward(40, 60, kernel=3, init_scale=0.5), random(1, 2, 40)
    params = module.init(jax.random.key(0), x, gather=gather_by_mask(None, x.shape, 3), train=False)["params"]
    for name, shape in {"hidden": (3, 40, 60), "output": (3, 60, 40)}.items():
        assert params[name]["kernel"].shape == shape
        limit = 0.5 * (6 / (3 * (40 + 60))) ** 0.5
        assert 0.99 * limit < np.abs(params[name]["kernel"]).max() <= limit


@pytest.mark.parametrize("mask", [None, AttentionMask(None, np.ones((1, 4), bool))])
def test_rows_without_segments_are_one_sentence(mask):
    x = np.arange(1.0, 5.0).reshape(1, 4, 1)
    found = gather_by_mask(mask, x.shape, 3)(x)
    assert found[0, ..., 0].tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 0]]


def test_convolutions_without_their_neighbours_are_errors():
    """A layer that ignores the kernel would otherwise show later positions to a decoder."""
    with pytest.raises(ValueError, match=r"kernel 3 needs the argument gather"):
        layers.FeedForward(D, F, kernel=3).init(jax.random.key(0), random(B, L, D), train=False)
    layer = layers.Layer(layers.MultiHeadAttention(D, 2), layers.FeedForward(D, F, kernel=3))
    with pytest.raises(ValueError, match=r"kernel 3 .*AttentionMask or None, got a ndarray"):
        layer.init(jax.random.key(0), random(B, L, D), mask=np.ones((1, 1, L, L), bool), train=False)


@pytest.mark.long
def test_gelu_is_exact_and_gelu_tanh_is_the_approximation():
    x = np.linspace(-4, 4, 81)
    exact = [value * 0.5 * (1 + math.erf(value / 2**0.5)) for value in x]
    tanh = 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(layers.ACTIVATIONS["gelu"](x), exact, atol=1e-6)
    np.testing.assert_allclose(layers.ACTIVATIONS["gelu_tanh"](x), tanh, atol=1e-6)
    assert np.abs(exact - tanh).max() > 1e-4
