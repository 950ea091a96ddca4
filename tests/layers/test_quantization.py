"""Tests of quantized dense layers and logits against the same arithmetic in NumPy."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.programs import count_foreign_calls
from tfm import backend
from tfm.layers import quantization
from tfm.layers.embedding import Embedding
from tfm.matmul import onednn

RNG = np.random.default_rng(0)


def random(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def rounded(x):
    """Returns x in float64 with each row rounded to 8 bits."""
    scales = np.abs(x.astype(np.float64)).max(-1, keepdims=True) / 127
    return np.round(x / scales) * scales


def product(x, weights):
    """Returns the product [..., outputs] of x [..., inputs] and weights [inputs, outputs], both of 8 bits."""
    return rounded(x) @ rounded(weights.T).T


def apply_quantized(module, params, x, **options):
    """Returns the output of a module after `quantize_params` has quantized its parameters."""
    with nn.intercept_methods(quantization.multiply_quantized):
        return module.apply(quantization.quantize_params(params).variables(), x, **options)


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_rows_are_scaled_by_their_largest_magnitude_and_rounded():
    x = random(5, 40) * np.array([[1e-20], [1e-3], [1], [1e3], [1e20]], np.float32)
    values, scales = quantization.quantize_rows(x)
    assert values.dtype == jnp.int8
    assert (np.abs(values).max(1) == 127).all()
    np.testing.assert_allclose(scales, np.abs(x).max(1) / 127, rtol=1e-6)
    errors = np.abs(values * np.asarray(scales, np.float64)[:, None] - x)
    assert (errors <= 0.50001 * np.asarray(scales)[:, None]).all()


def test_quantized_row_of_zeros_stays_zero():
    values, scales = quantization.quantize_rows(jnp.zeros((2, 3)))
    assert not values.any()
    assert np.isfinite(scales).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", [(2, 6), (32, 1024)])  # the maximum of many numbers ignores NaN on a CPU
@pytest.mark.parametrize("by_onednn", [True, False])
def test_non_finite_number_makes_its_row_and_its_output_nan(bad, shape, by_onednn, monkeypatch):
    if not by_onednn:
        monkeypatch.setattr(onednn, "multiplies_int8", lambda: False)
    x, weights = random(*shape), random(5, shape[1])
    x[1, 2] = weights[3, 1] = bad
    product = jax.jit(lambda x, weights: quantization.quantize_weights(weights).multiply(x))(x, weights)
    expected = np.zeros_like(product, bool)
    expected[1], expected[:, 3] = True, True
    np.testing.assert_array_equal(np.isnan(product), expected)


@pytest.mark.parametrize("rows", [1, 2, 40])
def test_products_equal_numpy(rows):
    x, weights = random(rows, 33), random(33, 20)
    found = quantization.quantize_weights(weights.T).multiply(x)
    assert_close(found, product(x, weights))
    assert np.abs(found - x @ weights).max() > 1e-4  # so that the rounding has an effect


@pytest.mark.parametrize("is_cpu", [False, True])
@pytest.mark.parametrize("inputs", [33, onednn.MAX_INPUTS, onednn.MAX_INPUTS + 1])
def test_onednn_is_used_on_cpus_and_equals_jax(inputs, is_cpu, monkeypatch):
    weights, x = quantization.quantize_weights(random(3, inputs)), random(2, inputs)
    monkeypatch.setattr(backend, "is_cpu", lambda: is_cpu)
    by_onednn = is_cpu and onednn.multiplies_int8() and inputs <= onednn.MAX_INPUTS
    assert count_foreign_calls(weights.multiply, x) == by_onednn
    product = weights.multiply(x)
    monkeypatch.setattr(onednn, "multiplies_int8", lambda: False)
    assert count_foreign_calls(weights.multiply, x) == 0
    np.testing.assert_array_equal(product, weights.multiply(x))


DENSE = {  # name of the module: (shape of its kernel, input axes that it sums)
    "hidden": ((8, 6), -1),
    "query": ((8, 2, 3), -1),
    "output": ((2, 3, 8), (-2, -1)),
}


class Layer(nn.Module):
    """A dense layer with the given name."""

    name_of_dense: str
    features: tuple[int, ...]
    axis: int | tuple[int, ...]

    @nn.compact
    def __call__(self, x):
        return nn.DenseGeneral(self.features, self.axis, name=self.name_of_dense)(x)


@pytest.mark.parametrize("name", DENSE)
def test_dense_layers_equal_numpy(name):
    shape, axis = DENSE[name]
    count = 1 if axis == -1 else 2
    kernel, bias = random(*shape), random(*shape[count:])
    x = random(4, 5, *shape[:count])
    layer = Layer(name, shape[count:], axis)
    found = apply_quantized(layer, {name: {"kernel": kernel, "bias": bias}}, x)
    inputs = np.prod(shape[:count])
    expected = product(x.reshape(20, inputs), kernel.reshape(inputs, -1))
    assert_close(found, expected.reshape(4, 5, *shape[count:]) + bias)


def test_nn_dense_without_bias_equals_numpy():
    kernel, x = random(8, 6), random(3, 8)
    assert_close(apply_quantized(nn.Dense(6, use_bias=False), {"kernel": kernel}, x), product(x, kernel))


@pytest.mark.parametrize("axis", [0, (0, 1)])
def test_dense_layers_over_other_axes_are_not_quantized(axis):
    """`quantize_params` assumes that the inputs are the first axis of the kernel and the last axis of x."""
    x = random(8, 8)
    shape = (8, 6) if axis == 0 else (8, 8, 6)
    params = {"kernel": random(*shape)}
    layer = nn.DenseGeneral(6, axis, use_bias=False)
    np.testing.assert_array_equal(apply_quantized(layer, params, x), layer.apply({"params": params}, x))


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_logits_equal_numpy_and_lookups_are_exact(tied, use_bias):
    x, table, output, bias = random(3, 8), random(20, 8), random(20, 8), random(20)
    params = {"embedding": {"table": table} if tied else {"table": table, "output": output}}
    if use_bias:
        params["embedding"]["bias"] = bias

    class Model(nn.Module):
        def setup(self):
            self.embedding = Embedding(20, 8, tied=tied, use_bias=use_bias)

        def __call__(self, x):
            return self.embedding(jnp.arange(20)), self.embedding.logits(x)

    looked_up, logits = apply_quantized(Model(), params, x)
    np.testing.assert_allclose(looked_up, table * 8**0.5, rtol=1e-6)
    assert_close(logits, product(x, (table if tied else output).T) + use_bias * bias)
    names = quantization.quantize_params(params).quantized["embedding"]
    assert list(names) == ["table" if tied else "output"]


def test_quantized_result_has_the_dtype_of_the_module():
    kernel, x = random(8, 6), random(3, 8)
    module = nn.Dense(6, use_bias=False, dtype=jnp.bfloat16)
    assert apply_quantized(module, {"kernel": kernel}, x).dtype == jnp.bfloat16
    found = apply_quantized(nn.Dense(6, use_bias=False), {"kernel": kernel}, jnp.bfloat16(x))
    assert found.dtype == jnp.float32


def test_only_kernels_and_the_output_embedding_are_quantized():
    params = {
        "norm": {"scale": random(8), "bias": random(8)},
        "positions": {"table": random(9, 8)},
        "source_embedding": {"table": random(9, 8)},
        "embedding": {"table": random(9, 8)},
        "hidden": {"kernel": random(8, 6), "bias": random(6)},
        "steps": {"kernel": random(8)},
    }
    found = quantization.quantize_params(params)
    assert {name: list(each) for name, each in found.quantized.items()} == {
        "hidden": ["kernel"],
        "embedding": ["table"],
    }
    assert found.params is params
