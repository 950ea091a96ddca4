"""Tests of matrix products against `jax.lax.dot_general`."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.support.programs import count_foreign_calls
from tfm import backend
from tfm.matmul import decoding_products, dot_general, onednn

RNG = np.random.default_rng(0)
CASES = {  # name: shapes of x and weights, and the axes that are summed
    "dense": ((3, 4, 8), (8, 6), (2,), (0,)),
    "heads": ((3, 4, 8), (8, 2, 3), (2,), (0,)),
    "output": ((3, 4, 2, 3), (2, 3, 8), (2, 3), (0, 1)),
    "logits": ((3, 4, 8), (20, 8), (2,), (1,)),
    "inputs first": ((8, 3, 4), (8, 6), (0,), (0,)),
}


def random(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def arguments(name):
    x, weights, x_axes, weight_axes = CASES[name]
    return random(*x), random(*weights), ((x_axes, weight_axes), ((), ()))


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


needs_onednn = pytest.mark.skipif(
    not onednn.multiplies_bfloat16(), reason="tfm-native is not installed, or the processor lacks avx512_bf16"
)


def assert_close(product, expected):
    product, expected = (np.asarray(x, np.float32) for x in (product, expected))
    np.testing.assert_allclose(product, expected, rtol=2**-7, atol=2**-7 * np.abs(expected).max())


@needs_onednn
@pytest.mark.parametrize("name", CASES)
def test_bfloat16_products_and_gradients_of_onednn_equal_those_of_xla(name):
    x, weights, numbers = arguments(name)
    operands = (jnp.bfloat16(x), jnp.bfloat16(weights))

    def loss(x, weights):
        product = dot_general(x, weights, numbers, 0)
        assert product.dtype == jnp.bfloat16
        return (product.astype(jnp.float32) ** 2).sum(), product

    def run(*operands):
        return jax.value_and_grad(loss, (0, 1), has_aux=True)(*operands)

    assert count_foreign_calls(run, *operands) == 3
    with backend.no_foreign_calls():
        assert count_foreign_calls(run, *operands) == 0
        expected = run(*operands)
    jax.tree.map(assert_close, run(*operands), expected)


@needs_onednn
def test_bfloat16_products_may_be_returned_in_float32():
    x, weights, numbers = arguments("dense")
    operands = (jnp.bfloat16(x), jnp.bfloat16(weights))
    product = dot_general(*operands, numbers, 0, preferred_element_type=jnp.float32)
    expected = np.asarray(operands[0], np.float64) @ np.asarray(operands[1], np.float64)
    np.testing.assert_allclose(product, expected, rtol=1e-5, atol=1e-5)


needs_native = pytest.mark.skipif(onednn.load_native_package() is None, reason="tfm-native is not installed")


def multiply_for_decoding(*arguments):
    with decoding_products():
        return dot_general(*arguments)


@needs_native
@pytest.mark.parametrize("rows", [0, 12])
@pytest.mark.parametrize("name", CASES)
def test_onednn_multiplies_float32_only_during_decoding(name, rows):
    x, weights, numbers = arguments(name)
    product = jax.jit(lambda *o: multiply_for_decoding(*o, numbers, rows))(x, weights)
    np.testing.assert_allclose(product, jax.lax.dot_general(x, weights, numbers), rtol=1e-5, atol=1e-5)
    assert count_foreign_calls(lambda *o: dot_general(*o, numbers, rows), x, weights) == 0
    # oneDNN is slow if it has to transpose a large right operand, and with few rows of logits.
    calls = name == "inputs first" if rows else name != "logits"
    assert count_foreign_calls(lambda *o: multiply_for_decoding(*o, numbers, rows), x, weights) == calls
    with backend.no_foreign_calls():
        assert count_foreign_calls(lambda *o: multiply_for_decoding(*o, numbers, rows), x, weights) == 0


@needs_native
@pytest.mark.parametrize(("rows", "calls"), [(16, 0), (17, 1)])
def test_onednn_computes_logits_of_more_than_16_rows(rows, calls):
    x, table = random(rows, 8), random(40, 8)
    numbers = (((1,), (1,)), ((), ()))
    assert count_foreign_calls(lambda *o: multiply_for_decoding(*o, numbers, 64), x, table) == calls
    np.testing.assert_allclose(
        multiply_for_decoding(x, table, numbers, 64), x @ table.T, rtol=1e-5, atol=1e-5
    )


PLAIN = {  # name: x, weights, and the axes that are summed
    "two dtypes": (jnp.bfloat16(random(3, 8)), random(8, 6), 1, 0),
    "axes between others": (jnp.bfloat16(random(3, 8, 4)), jnp.bfloat16(random(8, 6)), 1, 0),
    "a single row": (random(1, 8), random(20, 8), 1, 1),
}


@pytest.mark.parametrize("name", PLAIN)
def test_xla_multiplies_operands_that_do_not_suit_onednn(name):
    x, weights, x_axis, weight_axis = PLAIN[name]
    numbers = (((x_axis,), (weight_axis,)), ((), ()))
    assert count_foreign_calls(lambda *o: multiply_for_decoding(*o, numbers, 64), x, weights) == 0
    shapes = [
        jax.eval_shape(lambda *o, multiply=multiply: multiply(*o, numbers), x, weights)
        for multiply in (dot_general, jax.lax.dot_general)
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    ("dtype", "context", "outside"),
    [
        pytest.param(jnp.float32, decoding_products, 0, marks=needs_native),
        pytest.param(jnp.bfloat16, backend.no_foreign_calls, 1, marks=needs_onednn),
    ],
)
def test_compiled_functions_are_traced_again_in_a_different_context(dtype, context, outside):
    """For example, a function that was compiled with oneDNN can be exported without oneDNN."""
    x, weights, numbers = arguments("dense")
    operands = jnp.asarray(x, dtype), jnp.asarray(weights, dtype)
    inner = jax.jit(lambda *operands: dot_general(*operands, numbers))
    inner(*operands)
    with context():
        assert count_foreign_calls(lambda *operands: inner(*operands), *operands) == 1 - outside
    assert count_foreign_calls(lambda *operands: inner(*operands), *operands) == outside


@pytest.mark.parametrize("rows", [0, 1_000])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_products_with_batch_axes_equal_those_of_jax(dtype, rows):
    x, weights = (jnp.asarray(random(*shape), dtype) for shape in ((2, 9, 8), (2, 6, 8)))
    numbers = (((2,), (2,)), ((0,), (0,)))
    product = dot_general(x, weights, numbers, rows)
    np.testing.assert_array_equal(product, jax.lax.dot_general(x, weights, numbers))


@needs_onednn
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


@needs_onednn
def test_xla_multiplies_on_several_devices(monkeypatch):
    x, weights, numbers = arguments("dense")
    monkeypatch.setattr(jax, "device_count", lambda: 2)
    operands = (jnp.bfloat16(x), jnp.bfloat16(weights))
    assert count_foreign_calls(lambda *o: dot_general(*o, numbers, 0), *operands) == 0
