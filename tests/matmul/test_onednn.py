"""Tests of the products of oneDNN against NumPy and XLA, and of a missing oneDNN."""

import contextlib
import functools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.paths import ROOT
from tests.support.processes import LIMIT
from tfm.layers.quantization import QuantizedWeights, quantize_rows, quantize_weights
from tfm.matmul import onednn
from tfm.testing.models import quick_jit

RNG = np.random.default_rng(0)
SHAPES = [(1, 1, 1), (2, 3, 5), (17, 40, 33), (32, 2048, 8)]  # rows, inputs, outputs
EMPTY_SHAPES = [(4, 0, 3), (0, 5, 3), (4, 5, 0)]
ORDERS = [(False, False), (False, True), (True, False), (True, True)]  # transpose_x, transpose_y

needs_native = pytest.mark.skipif(onednn.load_native_package() is None, reason="tfm-native is not installed")
needs_int8 = pytest.mark.skipif(
    not onednn.multiplies_int8(), reason="tfm-native is not installed, or the processor lacks VNNI"
)
needs_bfloat16 = pytest.mark.skipif(
    not onednn.multiplies_bfloat16(), reason="tfm-native is not installed, or the processor lacks avx512_bf16"
)
DTYPES = [
    pytest.param(jnp.float32, marks=needs_native),
    pytest.param(jnp.bfloat16, marks=needs_bfloat16),
]


def make_quantized(rows, inputs, outputs):
    """Returns x float32 [rows, inputs] with rows of very different sizes, and quantized weights."""
    x = RNG.normal(size=(rows, inputs)) * 10.0 ** RNG.integers(-6, 6, (rows, 1))
    return jnp.float32(x), quick_jit(quantize_weights)(RNG.normal(size=(outputs, inputs)))


def multiply_int8(x, weights):
    return onednn.multiply_int8(x, weights.values, weights.scales, weights.excess)


@jax.jit
def expected_product(x, weights):
    """Returns the product that XLA computes from exact sums."""
    values, scales = quantize_rows(x)
    sums = jnp.einsum("ri,oi->ro", values, weights.values, preferred_element_type=jnp.int32)
    return sums.astype(jnp.float32) * (scales[:, None] * weights.scales)


def make_matrices(shape, transpose_x=False, transpose_y=False, dtype=jnp.bfloat16):
    """Returns two operands and their product in float64."""
    rows, inner, columns = shape
    x, y = (RNG.normal(size=size).astype(dtype) for size in ((rows, inner), (inner, columns)))
    expected = x.astype(np.float64) @ y.astype(np.float64)
    return (
        np.ascontiguousarray(x.T) if transpose_x else x,
        np.ascontiguousarray(y.T) if transpose_y else y,
        expected,
    )


@needs_int8
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_int8_products_equal_those_of_xla_bit_for_bit(shape):
    x, weights = make_quantized(*shape)
    product = jax.jit(multiply_int8)(x, weights)
    assert product.dtype == jnp.float32
    np.testing.assert_array_equal(product, expected_product(x, weights))


@needs_int8
@pytest.mark.parametrize("outputs", [3, 4, 7, 4097])  # 4,097 outputs are divided over threads
@pytest.mark.parametrize("inputs", [1, 64, 257])
def test_int8_products_of_few_rows_equal_those_of_xla_bit_for_bit(inputs, outputs):
    """oneDNN computes products of 1 and of more than 8 rows, and the native package those in between."""
    for rows in range(1, 11):
        x, weights = make_quantized(rows, inputs, outputs)
        product = jax.jit(multiply_int8)(x, weights)
        np.testing.assert_array_equal(product, expected_product(x, weights), err_msg=f"{rows} rows")


@needs_int8
@pytest.mark.parametrize("shape", EMPTY_SHAPES, ids=str)
def test_int8_products_of_empty_matrices_are_zeros(shape):
    rows, inputs, outputs = shape
    weights = QuantizedWeights(
        jnp.ones((outputs, inputs), jnp.int8), jnp.ones(outputs), jnp.zeros(outputs, jnp.int32)
    )
    product = multiply_int8(jnp.ones((rows, inputs)), weights)
    np.testing.assert_array_equal(product, np.zeros((rows, outputs)))


@needs_int8
def test_int8_products_of_zeros_halves_and_non_finite_numbers_equal_those_of_xla():
    _, weights = make_quantized(1, 6, 20)
    halves = [[127, 0.5, 1.5, -0.5, -2.5, 126.5], [0] * 6, [1e-30] * 6]
    undefined = [[1, np.nan, 2, 3, 4, 5], [-np.inf, 0, 0, 0, 0, 0]]
    x = jnp.array(halves + undefined, jnp.float32)
    product = jax.jit(multiply_int8)(x, weights)
    np.testing.assert_array_equal(product, expected_product(x, weights))
    assert np.isnan(product).all(1).tolist() == [False, False, False, True, True]


@needs_int8
@pytest.mark.parametrize("sign", [-1, 1])
def test_largest_int8_sums_are_exact(sign):
    x = jnp.ones((2, onednn.MAX_INPUTS))
    weights = QuantizedWeights(
        jnp.full((3, onednn.MAX_INPUTS), sign * 127, jnp.int8), jnp.ones(3), jnp.zeros(3, jnp.int32)
    )
    np.testing.assert_array_equal(
        multiply_int8(x, weights), np.full((2, 3), np.float32(sign * 255 * 127 * onednn.MAX_INPUTS) / 127)
    )


def test_max_inputs_is_the_largest_number_whose_sums_fit_into_32_bits():
    largest = onednn.MAX_INPUTS * 255 * 128
    assert largest < 2**31 <= largest + 255 * 128


@needs_int8
def test_two_threads_may_multiply_at_the_same_time():
    x, weights = make_quantized(16, 24, 24)

    @functools.partial(jax.jit, static_argnums=0)
    def loop(multiply, x):
        return jax.lax.fori_loop(0, 50, lambda _, x: multiply(x, weights) / 8, x)

    expected = [loop(expected_product, each) for each in (x, 1 - x)]
    with ThreadPoolExecutor(2) as pool:
        products = list(pool.map(lambda each: np.asarray(loop(multiply_int8, each)), [x, 1 - x]))
    np.testing.assert_array_equal(products, expected)


@needs_int8
def test_vmap_computes_each_int8_product():
    pairs = [make_quantized(3, 4, 5) for _ in range(2)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *pairs)
    products = jax.vmap(multiply_int8)(*stacked)
    np.testing.assert_array_equal(products, [expected_product(*pair) for pair in pairs])


@pytest.mark.parametrize("shape", SHAPES + EMPTY_SHAPES, ids=str)
@pytest.mark.parametrize("orders", ORDERS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_are_summed_in_float32(shape, orders, dtype):
    x, y, expected = make_matrices(shape, *orders, dtype)
    product = jax.jit(onednn.multiply, static_argnums=(2, 3))(x, y, *orders)
    assert product.dtype == jnp.float32
    np.testing.assert_allclose(product, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("orders", ORDERS, ids=str)
def test_all_modes_of_differentiation_agree_with_jax(orders, dtype):
    """The modes are reverse mode (in `gradient`), forward mode, and forward over reverse mode."""
    x, y, _ = make_matrices((4, 3, 5), *orders, dtype)
    tangents = tuple(RNG.normal(size=each.shape).astype(dtype) for each in (x, y))
    axes = (0 if orders[0] else 1,), (1 if orders[1] else 0,)

    def plain(x, y):
        return jax.lax.dot_general(x, y, (axes, ((), ())), preferred_element_type=jnp.float32)

    def differentiate(product):
        gradient = jax.grad(lambda *pair: jnp.sin(product(*pair)).sum(), (0, 1))
        return jax.jvp(product, (x, y), tangents), jax.jvp(gradient, (x, y), tangents)

    derivatives = jax.jit(lambda: differentiate(lambda *pair: onednn.multiply(*pair, *orders)))()
    expected = jax.jit(lambda: differentiate(plain))()
    for one, other in zip(*map(jax.tree.leaves, (derivatives, expected)), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(*(np.asarray(each, np.float32) for each in (one, other)), 2**-5, 2**-5)


@needs_bfloat16
@pytest.mark.parametrize("orders", ORDERS, ids=str)
@pytest.mark.parametrize("shape", EMPTY_SHAPES, ids=str)
def test_products_and_gradients_of_empty_matrices_are_zeros(shape, orders):
    x, y, expected = make_matrices(shape, *orders)

    @jax.jit
    def run(x, y):
        product, pull = jax.vjp(lambda *pair: onednn.multiply(*pair, *orders), x, y)
        return product, pull(jnp.ones_like(product))

    product, gradients = run(x, y)
    np.testing.assert_array_equal(product, expected)
    for gradient, operand in zip(gradients, (x, y), strict=True):
        np.testing.assert_array_equal(gradient, np.zeros_like(operand))


@needs_bfloat16
@pytest.mark.parametrize("orders", ORDERS, ids=str)
def test_vmap_over_one_operand_repeats_the_other(orders):
    x, y, expected = make_matrices((4, 3, 5), *orders)
    several = np.stack([x, 2 * x, 4 * x], axis=1)
    products = jax.vmap(lambda x: onednn.multiply(x, y, *orders), in_axes=1)(several)
    np.testing.assert_allclose(products, [expected, 2 * expected, 4 * expected], rtol=1e-4, atol=1e-4)


@needs_bfloat16
def test_vmap_over_both_operands_computes_each_product():
    pairs = [make_matrices((3, 4, 5)) for _ in range(2)]
    x, y, expected = map(np.stack, zip(*pairs, strict=True))
    np.testing.assert_allclose(jax.vmap(onednn.multiply)(x, y), expected, rtol=1e-4, atol=1e-4)


OUTPUTS = (jnp.ones(4), jnp.zeros(4, jnp.int32))  # scales and excess of four outputs
WRONG_OPERANDS = [  # function, shape and dtype of both operands, words of the message
    (onednn.multiply_int8, ((2, 3), "int8"), ((4, 3), "int8"), ["x", "float32", "int8"]),
    (onednn.multiply_int8, ((2, 3), "float32"), ((4, 3), "uint8"), ["weights", "int8", "uint8"]),
    (onednn.multiply_int8, ((2, 3), "float32"), ((3, 4), "int8"), ["(2, 3)", "(3, 4)"]),
    (onednn.multiply_int8, ((3,), "float32"), ((4, 3), "int8"), ["x", "(3,)"]),
    (onednn.multiply_int8, ((1, 70_000), "float32"), ((4, 70_000), "int8"), [str(onednn.MAX_INPUTS)]),
    (onednn.multiply, ((2, 3), "float32"), ((3, 4), "bfloat16"), ["y", "bfloat16", "float32"]),
    (onednn.multiply, ((2, 3), "float16"), ((3, 4), "float16"), ["x", "float16", "float32"]),
    (onednn.multiply, ((2, 3), "bfloat16"), ((4, 3), "bfloat16"), ["(2, 3)", "(4, 3)"]),
]


@pytest.mark.parametrize(("multiply", "x", "y", "words"), WRONG_OPERANDS)
def test_operands_of_a_wrong_dtype_or_shape_are_an_error(multiply, x, y, words):
    operands = (np.ones(shape, jnp.dtype(dtype)) for shape, dtype in (x, y))
    rest = OUTPUTS if multiply is onednn.multiply_int8 else ()
    with pytest.raises((TypeError, ValueError)) as caught:
        multiply(*operands, *rest)
    assert all(word in str(caught.value) for word in words)


def call_target(name, result, *operands, **attributes):
    """Calls a handler without the checks of `tfm.matmul.onednn`. Arrays are (shape, dtype)."""
    target = getattr(onednn.load_native_package(), name)
    operands = [np.ones(shape, jnp.dtype(dtype)) for shape, dtype in operands]
    return jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(*result))(*operands, **attributes)


INT8_OPERANDS = [((2, 3), "float32"), ((4, 3), "int8"), ((4,), "float32"), ((4,), "int32")]


@needs_native
@pytest.mark.parametrize(
    ("index", "array"),
    [
        (0, ((2, 3), "int8")),
        (0, ((6,), "float32")),
        (1, ((4, 5), "int8")),
        (2, ((3,), "float32")),
        (3, ((5,), "int32")),
        (4, ((2, 4), "int32")),
        (4, ((9, 9), "float32")),
    ],
)
def test_int8_handler_rejects_operands_of_wrong_shapes(index, array):
    arrays = [*INT8_OPERANDS, ((2, 4), "float32")]
    *operands, result = [array if number == index else each for number, each in enumerate(arrays)]
    with pytest.raises(jax.errors.JaxRuntimeError):
        jax.block_until_ready(call_target("QUANTIZED_TARGET", result, *operands))


@needs_native
@pytest.mark.parametrize(
    ("target", "dtype"), [("BFLOAT16_TARGET", "bfloat16"), ("FLOAT32_TARGET", "float32")]
)
@pytest.mark.parametrize(
    ("x", "y", "result"), [((2, 3), (4, 3), (2, 4)), ((2, 3), (3, 4), (4, 2)), ((6,), (3, 4), (2, 4))]
)
def test_float_handlers_reject_operands_of_wrong_shapes_or_dtypes(target, dtype, x, y, result):
    orders, fits = {"transpose_x": False, "transpose_y": False}, ((2, 3), (3, 4), (2, 4))
    other = "float32" if dtype == "bfloat16" else "bfloat16"
    for (left, right, product), y_dtype in (((x, y, result), dtype), (fits, other)):
        operands = (left, dtype), (right, y_dtype)
        with pytest.raises(jax.errors.JaxRuntimeError):
            jax.block_until_ready(call_target(target, (product, "float32"), *operands, **orders))


@pytest.fixture
def fresh_package():
    """Clears the cache of the native package before and after the test."""
    onednn.load_native_package.cache_clear()
    yield
    onednn.load_native_package.cache_clear()


@pytest.mark.usefixtures("fresh_package")
def test_xla_multiplies_without_the_native_package(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "tfm_native", None)
    assert not onednn.multiplies_int8()
    assert not onednn.multiplies_bfloat16()
    assert not caplog.records
    with pytest.raises(ModuleNotFoundError, match="native"):
        multiply_int8(*make_quantized(2, 3, 5))


@pytest.mark.usefixtures("fresh_package")
@pytest.mark.parametrize(
    ("code", "reason"), [("raise ImportError('libdnnl is gone')", "libdnnl is gone"), ("", "older version")]
)
def test_damaged_or_old_native_package_is_reported_and_not_used(code, reason, tmp_path, monkeypatch, caplog):
    (tmp_path / "tfm_native.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tfm_native", raising=False)
    assert not onednn.multiplies_int8()
    assert not onednn.multiplies_bfloat16()
    (record,) = caplog.records
    assert reason in record.getMessage()
    with contextlib.suppress(KeyError):
        del sys.modules["tfm_native"]


PROCESS = """
import os
before = dict(os.environ)
import numpy as np
from tfm.matmul import onednn
print(onednn.multiplies_int8(), onednn.multiplies_bfloat16(), dict(os.environ) == before)
if onednn.multiplies_int8():
    arrays = np.ones((64, 32), np.float32), np.ones((48, 32), np.int8)
    arrays += np.ones(48, np.float32), np.full(48, 32 * 128, np.int32)
    assert (np.asarray(onednn.multiply_int8(*arrays)) == 32).all()
    child = os.fork()
    if child == 0:
        is_right = (np.asarray(onednn.multiply_int8(*arrays)) == 32).all()
        os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@needs_native
@pytest.mark.long
@pytest.mark.parametrize("instructions", ["", "AVX2"])
def test_other_processes_multiply_in_any_folder_and_after_a_fork(instructions, tmp_path):
    """ONEDNN_MAX_CPU_ISA forbids instructions without which products are not exact or not fast."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    environment.pop("OMP_WAIT_POLICY", None)
    if instructions:
        environment["ONEDNN_MAX_CPU_ISA"] = instructions
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROCESS],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr
    can_multiply = (
        (onednn.multiplies_int8(), onednn.multiplies_bfloat16()) if not instructions else (False, False)
    )
    assert done.stdout.split() == [*map(str, can_multiply), "True"]
