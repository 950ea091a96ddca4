"""Tests of weight normalization and of the gathering of neighbours."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.layers.neighbours import gather_neighbours
from tfm.systems.conv_s2s.weight_norm import WeightNormDense

X = np.random.default_rng(0).normal(size=(2, 5, 4)).astype(np.float32)


def test_projection_equals_its_definition():
    rng = np.random.default_rng(1)
    module = WeightNormDense(3)
    params = jax.tree.map(lambda x: x + rng.normal(size=x.shape), module.init(jax.random.key(0), X)["params"])
    v, g, b = (np.asarray(params[name], np.float64) for name in ("direction", "scale", "bias"))
    expected = X @ (g * v / np.sqrt((v**2).sum(0))) + b
    np.testing.assert_allclose(module.apply({"params": params}, X), expected, atol=1e-5)
    features, table = module.apply({"params": params}, X, method="fused_inputs")
    np.testing.assert_allclose(features @ table.T, expected, atol=1e-5)


def test_gradient_of_a_direction_is_orthogonal_to_it():
    """The output does not depend on the length of a direction (Salimans and Kingma 2016, section 2.1)."""
    module = WeightNormDense(3)
    variables = module.init(jax.random.key(0), X)
    gradient = jax.grad(lambda variables: jnp.sin(module.apply(variables, X)).sum())(variables)
    products = (gradient["params"]["direction"] * variables["params"]["direction"]).sum(0)
    np.testing.assert_allclose(products, 0, atol=1e-5)


@pytest.mark.parametrize("gain", [1.0, 4.0])
def test_gain_is_the_initial_variance_of_the_output(gain):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(500, 100)).astype(np.float32)
    module = WeightNormDense(200, gain)
    output, variables = module.init_with_output(jax.random.key(0), x)
    np.testing.assert_allclose(output.var(), gain, rtol=0.1)
    direction = variables["params"]["direction"]
    np.testing.assert_allclose(variables["params"]["scale"], jnp.linalg.norm(direction, axis=0), rtol=1e-6)


@pytest.mark.parametrize("offsets", [range(-2, 1), range(-1, 2), range(1), range(-7, 1), range(1, 3)])
def test_neighbours_equal_a_loop_over_positions(offsets):
    segments = np.array([[1, 1, 2, 2, 2], [1, 1, 1, 0, 0]])
    expected = np.zeros((2, 5, len(offsets), 4))
    for row, position, part in np.ndindex(2, 5, len(offsets)):
        other = position + offsets[part]
        if 0 <= other < 5 and segments[row, position] == segments[row, other] > 0:
            expected[row, position, part] = X[row, other]
    found = gather_neighbours(jnp.asarray(X), jnp.asarray(segments), offsets)
    np.testing.assert_array_equal(found, expected.reshape(2, 5, -1).astype(np.float32))


def test_projected_neighbours_equal_a_convolution():
    rng = np.random.default_rng(1)
    kernel = rng.normal(size=(3, 4, 6)).astype(np.float32)
    windows = gather_neighbours(jnp.asarray(X), jnp.ones((2, 5), int), range(-1, 2))
    expected = jax.lax.conv_general_dilated(X, kernel, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
    np.testing.assert_allclose(windows @ kernel.reshape(12, 6), expected, atol=1e-5)
