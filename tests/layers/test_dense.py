"""Tests of the initialization of kernels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm import layers


@pytest.mark.long
def test_kernels_are_glorot_uniform():
    """The kernels are uniform within sqrt(6 / (D + H K)) of 0, as for the flattened [D, H * K] matrix."""
    module = layers.MultiHeadAttention(64, 4, key_features=32, value_features=32)
    kernel = module.init(
        jax.random.key(0), jnp.zeros((1, 2, 64)), jnp.zeros((1, 2, 64)), mask=None, train=False
    )
    for name, fans in (("query", 64 + 128), ("output", 64 + 128)):
        values = np.asarray(kernel["params"][name]["kernel"])
        limit = np.sqrt(6 / fans)
        assert 0.98 * limit < np.abs(values).max() <= limit
        assert abs(values.std() - limit / np.sqrt(3)) < 0.02 * limit
