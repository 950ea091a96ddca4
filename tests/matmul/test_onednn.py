"""Products by oneDNN compared with NumPy, and what happens if oneDNN is missing."""

import contextlib
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
from tfm.matmul import onednn

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


def make_integers(rows, inputs, outputs):
    x = RNG.integers(0, 256, (rows, inputs), np.uint8)
    return x, RNG.integers(-128, 128, (outputs, inputs), np.int8)


def expected_product(x, weights):
    return x.astype(np.int64) @ weights.astype(np.int64).T


def make_matrices(shape, transpose_x=False, transpose_y=False):
    """Returns operands of bfloat16, and their product in float64."""
    rows, inner, columns = shape
    x, y = (RNG.normal(size=size).astype(jnp.bfloat16) for size in ((rows, inner), (inner, columns)))
    expected = x.astype(np.float64) @ y.astype(np.float64)
    return (
        np.ascontiguousarray(x.T) if transpose_x else x,
        np.ascontiguousarray(y.T) if transpose_y else y,
        expected,
    )


@needs_int8
@pytest.mark.parametrize("shape", SHAPES + EMPTY_SHAPES, ids=str)
def test_int8_products_are_exact(shape):
    x, weights = make_integers(*shape)
    product = jax.jit(onednn.multiply_int8)(x, weights)
    assert product.dtype == jnp.int32
    np.testing.assert_array_equal(product, expected_product(x, weights))


@needs_int8
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_int8_sums_are_exact(sign):
    x = np.full((2, onednn.MAX_INPUTS), 255, np.uint8)
    weights = np.full((3, onednn.MAX_INPUTS), sign * 127 - (sign < 0), np.int8)
    np.testing.assert_array_equal(onednn.multiply_int8(x, weights), expected_product(x, weights))


def test_one_more_input_than_the_maximum_would_not_fit_into_32_bits():
    largest = onednn.MAX_INPUTS * 255 * 128
    assert largest < 2**31 <= largest + 255 * 128


@needs_int8
def test_two_threads_multiply_at_the_same_time():
    x, weights = make_integers(16, 24, 24)

    @jax.jit
    def loop(x):
        def multiply(_, x):
            return (onednn.multiply_int8(x, weights) % 256).astype(jnp.uint8)

        return jax.lax.fori_loop(0, 50, multiply, x)

    expected = [x, 255 - x]
    for _ in range(50):
        expected = [(expected_product(each, weights) % 256).astype(np.uint8) for each in expected]
    with ThreadPoolExecutor(2) as pool:
        products = list(pool.map(lambda each: np.asarray(loop(each)), [x, 255 - x]))
    np.testing.assert_array_equal(products, expected)


@needs_int8
def test_vmap_computes_each_int8_product():
    pairs = [make_integers(3, 4, 5) for _ in range(2)]
    products = jax.vmap(onednn.multiply_int8)(*map(np.stack, zip(*pairs, strict=True)))
    np.testing.assert_array_equal(products, [expected_product(*pair) for pair in pairs])


@needs_bfloat16
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("orders", ORDERS, ids=str)
def test_bfloat16_products_are_summed_in_float32(shape, orders):
    x, y, expected = make_matrices(shape, *orders)
    product = jax.jit(onednn.multiply_bfloat16, static_argnums=(2, 3))(x, y, *orders)
    assert product.dtype == jnp.float32
    np.testing.assert_allclose(product, expected, rtol=1e-4, atol=1e-4)


@needs_bfloat16
@pytest.mark.parametrize("orders", ORDERS, ids=str)
def test_all_modes_of_differentiation_agree_with_jax(orders):
    """Reverse mode, forward mode, and forward over reverse mode."""
    x, y, _ = make_matrices((4, 3, 5), *orders)
    tangents = tuple(RNG.normal(size=each.shape).astype(jnp.bfloat16) for each in (x, y))
    axes = (0 if orders[0] else 1,), (1 if orders[1] else 0,)

    def plain(x, y):
        return jax.lax.dot_general(x, y, (axes, ((), ())), preferred_element_type=jnp.float32)

    def differentiate(product):
        gradient = jax.grad(lambda *pair: jnp.sin(product(*pair)).sum(), (0, 1))
        return jax.jvp(product, (x, y), tangents), jax.jvp(gradient, (x, y), tangents)

    derivatives = jax.jit(lambda: differentiate(lambda *pair: onednn.multiply_bfloat16(*pair, *orders)))()
    expected = jax.jit(lambda: differentiate(plain))()
    for one, other in zip(*map(jax.tree.leaves, (derivatives, expected)), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(*(np.asarray(each, np.float32) for each in (one, other)), 2**-5, 2**-5)


@needs_bfloat16
@pytest.mark.parametrize("orders", ORDERS, ids=str)
@pytest.mark.parametrize("shape", EMPTY_SHAPES, ids=str)
def test_empty_matrices_have_products_and_gradients(shape, orders):
    x, y, expected = make_matrices(shape, *orders)

    @jax.jit
    def run(x, y):
        product, pull = jax.vjp(lambda *pair: onednn.multiply_bfloat16(*pair, *orders), x, y)
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
    products = jax.vmap(lambda x: onednn.multiply_bfloat16(x, y, *orders), in_axes=1)(several)
    np.testing.assert_allclose(products, [expected, 2 * expected, 4 * expected], rtol=1e-4, atol=1e-4)


@needs_bfloat16
def test_vmap_over_both_operands_computes_each_product():
    pairs = [make_matrices((3, 4, 5)) for _ in range(2)]
    x, y, expected = map(np.stack, zip(*pairs, strict=True))
    np.testing.assert_allclose(jax.vmap(onednn.multiply_bfloat16)(x, y), expected, rtol=1e-4, atol=1e-4)


WRONG_OPERANDS = [  # function, shape and dtype of both operands, words of the message
    (onednn.multiply_int8, ((2, 3), "int8"), ((4, 3), "int8"), ["x", "uint8", "int8"]),
    (onednn.multiply_int8, ((2, 3), "uint8"), ((4, 3), "float32"), ["weights", "int8", "float32"]),
    (onednn.multiply_int8, ((2, 3), "uint8"), ((3, 4), "int8"), ["(2, 3)", "(3, 4)"]),
    (onednn.multiply_int8, ((3,), "uint8"), ((4, 3), "int8"), ["x", "(3,)"]),
    (onednn.multiply_int8, ((1, 70_000), "uint8"), ((1, 70_000), "int8"), [str(onednn.MAX_INPUTS)]),
    (onednn.multiply_bfloat16, ((2, 3), "float32"), ((3, 4), "bfloat16"), ["x", "bfloat16", "float32"]),
    (onednn.multiply_bfloat16, ((2, 3), "bfloat16"), ((4, 3), "bfloat16"), ["(2, 3)", "(4, 3)"]),
]


@pytest.mark.parametrize(("multiply", "x", "y", "words"), WRONG_OPERANDS)
def test_operands_of_another_dtype_or_shape_are_an_error(multiply, x, y, words):
    with pytest.raises((TypeError, ValueError)) as caught:
        multiply(*(np.ones(shape, jnp.dtype(dtype)) for shape, dtype in (x, y)))
    assert all(word in str(caught.value) for word in words)


def call_target(name, x, y, result, dtype, **attributes):
    """Calls a handler without the checks of `tfm.matmul.onednn`."""
    target = getattr(onednn.load_native_package(), name)
    operands = (np.ones(shape, jnp.dtype(dtype)) for shape, dtype in (x, y))
    return jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(result, dtype))(*operands, **attributes)


@needs_native
@pytest.mark.parametrize(
    ("x", "y", "result", "dtype"),
    [
        (((2, 3), "int8"), ((4, 3), "int8"), (2, 4), "int32"),
        (((2, 3), "uint8"), ((4, 3), "int8"), (2, 4), "float32"),
        (((2, 3), "uint8"), ((4, 5), "int8"), (2, 4), "int32"),
        (((2, 3), "uint8"), ((4, 3), "int8"), (9, 9), "int32"),
        (((6,), "uint8"), ((4, 3), "int8"), (2, 4), "int32"),
    ],
)
def test_the_int8_handler_never_reads_beyond_its_operands(x, y, result, dtype):
    with pytest.raises(jax.errors.JaxRuntimeError):
        jax.block_until_ready(call_target("INT8_TARGET", x, y, result, dtype))


@needs_native
@pytest.mark.parametrize(
    ("x", "y", "result"),
    [
        (((2, 3), "float32"), ((3, 4), "bfloat16"), (2, 4)),
        (((2, 3), "bfloat16"), ((4, 3), "bfloat16"), (2, 4)),
        (((2, 3), "bfloat16"), ((3, 4), "bfloat16"), (4, 2)),
    ],
)
def test_the_bfloat16_handler_never_reads_beyond_its_operands(x, y, result):
    orders = {"transpose_x": False, "transpose_y": False}
    with pytest.raises(jax.errors.JaxRuntimeError):
        jax.block_until_ready(call_target("BFLOAT16_TARGET", x, y, result, "float32", **orders))


@pytest.fixture
def fresh_package():
    """Forgets the native package before and after the test."""
    onednn.load_native_package.cache_clear()
    yield
    onednn.load_native_package.cache_clear()


@pytest.mark.usefixtures("fresh_package")
def test_without_the_package_xla_multiplies(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "tfm_native", None)
    assert not onednn.multiplies_int8()
    assert not onednn.multiplies_bfloat16()
    assert not caplog.records
    with pytest.raises(ModuleNotFoundError, match="native"):
        onednn.multiply_int8(*make_integers(2, 3, 5))


@pytest.mark.usefixtures("fresh_package")
def test_a_damaged_package_is_reported_and_not_used(tmp_path, monkeypatch, caplog):
    (tmp_path / "tfm_native.py").write_text("raise ImportError('libdnnl is gone')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tfm_native", raising=False)
    assert not onednn.multiplies_int8()
    assert not onednn.multiplies_bfloat16()
    (record,) = caplog.records
    assert "libdnnl is gone" in record.getMessage()
    with contextlib.suppress(KeyError):
        del sys.modules["tfm_native"]


PROCESS = """
import os
before = dict(os.environ)
import numpy as np
from tfm.matmul import onednn
print(onednn.multiplies_int8(), onednn.multiplies_bfloat16(), dict(os.environ) == before)
if onednn.multiplies_int8():
    x, weights = np.ones((64, 32), np.uint8), np.ones((48, 32), np.int8)
    assert (np.asarray(onednn.multiply_int8(x, weights)) == 32).all()
    child = os.fork()
    if child == 0:
        is_right = (np.asarray(onednn.multiply_int8(x, weights)) == 32).all()
        os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@needs_native
@pytest.mark.long
@pytest.mark.parametrize("instructions", ["", "AVX2"])
def test_another_process_multiplies_in_any_folder_and_after_a_fork(instructions, tmp_path):
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
