"""Multi-head attention against NumPy in float64 and against Flax."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from tests.helpers import numpy_transformer as numpy64
from tests.helpers.layer_cases import B, D, H, L, M, attention, noisy, random
from tfm import layers


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


def test_heads_must_divide_the_features():
    with pytest.raises(ValueError, match="do not divide"):
        layers.MultiHeadAttention(10, 4).init(
            jax.random.key(0), random(1, 2, 10), random(1, 2, 10), mask=None, train=False
        )


def test_attention_drops_weights_in_training_alone():
    plain, dropping = attention(), attention(dropout_rate=0.5)
    x, memory = random(B, L, D), random(B, M, D, seed=1)
    params = noisy(plain.init(jax.random.key(0), x, memory, mask=None, train=False))

    def run(module, train, **keywords):
        return module.apply({"params": params}, x, memory, mask=None, train=train, **keywords)

    np.testing.assert_array_equal(run(dropping, False), run(plain, False))  # and needs no random key
    rngs = {"dropout": jax.random.key(1)}
    assert not np.allclose(run(dropping, True, rngs=rngs), run(plain, True))
    np.testing.assert_array_equal(run(plain, True, rngs=rngs), run(plain, False))
