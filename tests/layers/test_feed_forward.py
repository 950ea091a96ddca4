"""The feed-forward network and its activations against NumPy in float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.layer_cases import B, D, F, L, noisy, random
from tfm import layers


@pytest.mark.long
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "swish", jnp.tanh])
def test_feed_forward_is_equation_2(activation):
    module, x = layers.FeedForward(D, F, activation), random(B, L, D)
    params = noisy(module.init(jax.random.key(0), x, train=False))
    hidden = np.asarray(x, np.float64) @ params["hidden"]["kernel"] + params["hidden"]["bias"]
    hidden = np.asarray(layers.ACTIVATIONS.get(activation, activation)(hidden))
    expected = hidden @ params["output"]["kernel"] + params["output"]["bias"]
    np.testing.assert_allclose(module.apply({"params": params}, x, train=False), expected, atol=1e-5)


@pytest.mark.parametrize("activation", ["sigmoid", "swish"])
def test_gated_feed_forward(activation):
    """GLU and SwiGLU of Shazeer 2020."""
    module, x = layers.FeedForward(D, F, activation, gated=True), random(B, L, D)
    params = noisy(module.init(jax.random.key(0), x, train=False))
    first, gate = (
        x.astype(float) @ params[name]["kernel"] + params[name]["bias"] for name in ("hidden", "gate")
    )
    sigmoid = 1 / (1 + np.exp(-first))
    hidden = (sigmoid if activation == "sigmoid" else first * sigmoid) * gate
    expected = hidden @ params["output"]["kernel"] + params["output"]["bias"]
    np.testing.assert_allclose(module.apply({"params": params}, x, train=False), expected, atol=1e-5)


@pytest.mark.long
def test_gelu_is_exact_and_gelu_tanh_approximate():
    x = np.linspace(-4, 4, 81)
    exact = [value * 0.5 * (1 + math.erf(value / 2**0.5)) for value in x]
    tanh = 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(layers.ACTIVATIONS["gelu"](x), exact, atol=1e-6)
    np.testing.assert_allclose(layers.ACTIVATIONS["gelu_tanh"](x), tanh, atol=1e-6)
    assert np.abs(exact - tanh).max() > 1e-4
