"""Tests of matrix products against `jax.lax.dot_general`."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from tfm.devices import backend
from tfm.devices.matmul import dot_general

CASES = {  # name: shapes of x and weights, and the axes that are summed
    "dense": ((3, 4, 8), (8, 6), (2,), (0,)),
    "heads": ((3, 4, 8), (8, 2, 3), (2,), (0,)),
    "output": ((3, 4, 2, 3), (2, 3, 8), (2, 3), (0, 1)),
    "logits": ((3, 4, 8), (20, 8), (2,), (1,)),
    "inputs first": ((8, 3, 4), (8, 6), (0,), (0,)),
}


def random(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def arguments(name):
    x, weights, x_axes, weight_axes = CASES[name]
    return random(0, *x), random(1, *weights), ((x_axes, weight_axes), ((), ()))


@pytest.mark.long
@pytest.mark.parametrize("rows", [0, 11, 12])  # x has 12 rows
@pytest.mark.parametrize("name", CASES)
def test_products_and_gradients_equal_those_of_jax(name, rows):
    x, weights, numbers = arguments(name)

    def loss(function, *rest):
        return lambda x, weights: (function(x, weights, numbers, *rest) ** 2).sum()

    product = dot_general(x, weights, numbers, rows)
    expected = jax.lax.dot_general(x, weights, numbers)
    np.testing.assert_allclose(product, expected, rtol=1e-6, atol=1e-6)
    gradients = jax.grad(loss(dot_general, rows), (0, 1))(x, weights)
    expected = jax.grad(loss(jax.lax.dot_general), (0, 1))(x, weights)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), gradients, expected)


@pytest.mark.parametrize("name", CASES)
def test_gradients_contain_no_transposition(name):
    # With a separate transposition of an operand in each layer, training took 10 % longer.
    x, weights, numbers = arguments(name)

    def gradients(x, weights, cotangent):
        return jax.vjp(lambda *sides: dot_general(*sides, numbers, 0), x, weights)[1](cotangent)

    cotangent = dot_general(x, weights, numbers, 0)
    program = jax.jit(gradients).lower(x, weights, cotangent).compile().as_text()
    assert program.count(" dot(") >= 2  # the gradient of each operand
    assert not re.search(r"= \S+ (transpose|copy)\(", program)


@pytest.mark.parametrize("is_cpu", [False, True])
def test_weights_are_the_left_operand_only_on_cpus(is_cpu, monkeypatch):
    monkeypatch.setattr(backend, "is_cpu", lambda: is_cpu)
    x, weights, numbers = arguments("dense")
    jaxpr = jax.make_jaxpr(lambda x, weights: dot_general(x, weights, numbers, 12))(x, weights)
    (product,) = [equation for equation in jaxpr.eqns if equation.primitive.name == "dot_general"]
    assert (product.invars[0].aval.shape == weights.shape) == is_cpu


def test_bfloat16_products_may_be_returned_in_float32():
    x, weights, numbers = arguments("dense")
    operands = (jnp.bfloat16(x), jnp.bfloat16(weights))
    product = dot_general(*operands, numbers, 0, preferred_element_type=jnp.float32)
    expected = np.asarray(operands[0], np.float64) @ np.asarray(operands[1], np.float64)
    np.testing.assert_allclose(product, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [0, 1_000])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_products_with_batch_axes_equal_those_of_jax(dtype, rows):
    x, weights = (jnp.asarray(random(0, *shape), dtype) for shape in ((2, 9, 8), (2, 6, 8)))
    numbers = (((2,), (2,)), ((0,), (0,)))
    product = dot_general(x, weights, numbers, rows)
    np.testing.assert_array_equal(product, jax.lax.dot_general(x, weights, numbers))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_products_keep_the_mesh_axes_of_their_types(kind):
    """This holds in `jax.shard_map` and in a mesh with explicit axes."""
    mesh = jax.make_mesh((1,), ("data",), axis_types=(kind,))
    x, weights = (jnp.ones(shape, jnp.bfloat16) for shape in ((9, 8), (8, 8)))
    divided = jax.device_put(x, NamedSharding(mesh, P("data")))

    def multiply_often(x, weights):
        def step(x, _):
            return dot_general(x, weights, (((1,), (0,)), ((), ())), 0), None

        return jax.lax.scan(step, x, length=2)[0]

    with jax.set_mesh(mesh):
        shared = jax.shard_map(multiply_often, in_specs=(P("data"), P()), out_specs=P("data"))
        for function in (shared, jax.jit(multiply_often)):
            product = function(divided, weights)
            np.testing.assert_array_equal(product, np.full((9, 8), 64))
            assert kind == AxisType.Auto or jax.typeof(product).sharding.spec == P("data", None)


def test_mesh_of_one_device_may_divide_positions():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Explicit,))
    x, weights, numbers = arguments("dense")
    with jax.set_mesh(mesh):
        divided = jax.device_put(x, NamedSharding(mesh, P(None, "data")))
        product = jax.jit(lambda *operands: dot_general(*operands, numbers, 0))(divided, weights)
    assert jax.typeof(product).sharding.spec == P(None, "data", None)
    np.testing.assert_allclose(product, x @ weights, rtol=1e-6, atol=1e-6)
