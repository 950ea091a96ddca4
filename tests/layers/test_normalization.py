"""Tests of the norms against NumPy in float64. tests/layers/test_residual.py also covers LayerNorm."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.layer_cases import B, D, L, noisy, random
from tfm.layers import NORMS


def test_rms_norm_divides_by_root_mean_square():
    x = 3 + random(B, L, D)
    module = NORMS["rms_norm"](epsilon=0.1)
    params = noisy(module.init(jax.random.key(0), x))
    assert params.keys() == {"scale"}
    root = np.sqrt((x.astype(float) ** 2).mean(-1, keepdims=True) + 0.1)
    np.testing.assert_allclose(module.apply({"params": params}, x), x / root * params["scale"], atol=1e-5)


def test_bfloat16_norms_are_computed_in_float32():
    """The result equals the float32 result rounded once, although bfloat16 is too coarse for the squares."""
    x = (300 + random(B, L, D)).astype(jnp.bfloat16)
    for norm in NORMS.values():
        module = norm(jnp.bfloat16)
        params = noisy(module.init(jax.random.key(0), x))
        found = module.apply({"params": params}, x)
        assert found.dtype == jnp.bfloat16
        expected = norm().apply({"params": params}, x.astype(jnp.float32)).astype(jnp.bfloat16)
        np.testing.assert_array_equal(found, expected)


def test_layer_norm_is_exact_for_features_with_a_large_mean():
    """The variance as E[x ** 2] - E[x] ** 2 would lose all digits."""
    x = (10_000 + random(B, L, D)).astype(np.float32)
    module = NORMS["layer_norm"](epsilon=1e-6)
    params = module.init(jax.random.key(0), x).get("params", {})
    exact = x.astype(np.float64)
    centred = exact - exact.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(module.apply({"params": params}, x), expected, atol=5e-3)


@pytest.mark.parametrize("kind", NORMS)
def test_norms_have_the_given_name(kind):
    assert NORMS[kind](name="final").name == "final"
