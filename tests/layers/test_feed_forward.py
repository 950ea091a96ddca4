"""Tests of the feed-forward network and its activations against NumPy in float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.references.numpy_transformer import wide
from tests.support.layer_cases import B, D, F, L, noisy, random
from tfm import layers


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


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


@pytest.mark.long
def test_gelu_is_exact_and_gelu_tanh_is_the_approximation():
    x = np.linspace(-4, 4, 81)
    exact = [value * 0.5 * (1 + math.erf(value / 2**0.5)) for value in x]
    tanh = 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(layers.ACTIVATIONS["gelu"](x), exact, atol=1e-6)
    np.testing.assert_allclose(layers.ACTIVATIONS["gelu_tanh"](x), tanh, atol=1e-6)
    assert np.abs(exact - tanh).max() > 1e-4
