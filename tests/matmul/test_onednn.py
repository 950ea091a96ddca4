"""Products by oneDNN against NumPy, and what happens where it fails or is not there."""

import os
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.matmul import onednn

RNG = np.random.default_rng(0)
SHAPES = [(1, 1, 1), (2, 3, 5), (17, 40, 33), (32, 2048, 8)]  # rows, inputs, outputs

ORDERS = [(False, False), (False, True), (True, False), (True, True)]

needs_integers = pytest.mark.skipif(not onednn.is_available(), reason="oneDNN or VNNI is not here")
needs_bfloat16 = pytest.mark.skipif(
    not onednn.multiplies_bfloat16(), reason="oneDNN or instructions for bfloat16 are not here"
)


def make_operands(rows, inputs, outputs):
    x = RNG.integers(0, 256, (rows, inputs), np.uint8)
    return x, RNG.integers(-128, 128, (outputs, inputs), np.int8)


def expected_product(x, weights):
    return x.astype(np.int64) @ weights.astype(np.int64).T


@pytest.fixture
def fresh_programs():
    """What is traced in a test is not found by others."""
    yield
    jax.clear_caches()


@needs_integers
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_exact(shape):
    x, weights = make_operands(*shape)
    found = jax.jit(onednn.multiply)(x, weights)
    assert found.dtype == jnp.int32
    np.testing.assert_array_equal(found, expected_product(x, weights))


@needs_integers
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_sums_are_exact(sign):
    x, weights = np.full((2, 4096), 255, np.uint8), np.full((3, 4096), sign * 127, np.int8)
    np.testing.assert_array_equal(onednn.multiply(x, weights), expected_product(x, weights))


def test_as_many_inputs_as_32_bits_hold():
    largest = onednn.MAX_INPUTS * 255 * 128
    assert largest < 2**31 <= largest + 255 * 128


@needs_integers
def test_products_in_a_loop_on_two_threads():
    x, weights = make_operands(16, 24, 24)

    @jax.jit
    def loop(x):
        return jax.lax.fori_loop(0, 50, lambda _, x: (onednn.multiply(x, weights) % 256).astype(jnp.uint8), x)

    expected = [x, 255 - x]
    for _ in range(50):
        expected = [(expected_product(each, weights) % 256).astype(np.uint8) for each in expected]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda each: np.asarray(loop(each)), [x, 255 - x]))
    np.testing.assert_array_equal(found, expected)


@needs_integers
def test_each_element_of_vmap_has_its_product():
    pairs = [make_operands(3, 4, 5) for _ in range(2)]
    found = jax.vmap(onednn.multiply)(*map(np.stack, zip(*pairs, strict=True)))
    np.testing.assert_array_equal(found, [expected_product(*pair) for pair in pairs])


def return_status(*arguments):
    return 2


def raise_error(*arguments):
    raise ZeroDivisionError("a mistake of the handler")


def interrupt(*arguments):
    raise KeyboardInterrupt


@needs_integers
@pytest.mark.usefixtures("fresh_programs")
@pytest.mark.parametrize(
    ("gemm", "reason"),
    [
        (return_status, "status 2"),
        (raise_error, "a mistake of the handler"),
        (interrupt, "KeyboardInterrupt"),
    ],
)
def test_a_failure_ends_the_program(gemm, reason, monkeypatch):
    monkeypatch.setattr(onednn, "_gemm", gemm)
    with pytest.raises(jax.errors.JaxRuntimeError, match=reason):
        jax.block_until_ready(onednn.multiply(*make_operands(2, 3, 5)))


def saturate(*arguments):
    return 0  # a result that is left as it is, as wrong as any


@needs_integers
@pytest.mark.parametrize(
    ("name", "replacement"),
    [("_library", lambda: None), ("_gemm", return_status), ("_gemm", saturate)],
    ids=["not installed", "fails", "is not exact"],
)
def test_it_is_not_used_where_it(name, replacement, monkeypatch):
    monkeypatch.setattr(onednn, name, replacement)
    assert not onednn.is_available.__wrapped__()


def make_matrices(shape, transpose_x=False, transpose_y=False):
    """Operands, and their product in float64."""
    rows, inner, columns = shape
    x, y = (RNG.normal(size=size).astype(jnp.bfloat16) for size in ((rows, inner), (inner, columns)))
    expected = x.astype(np.float64) @ y.astype(np.float64)
    return (
        np.ascontiguousarray(x.T) if transpose_x else x,
        np.ascontiguousarray(y.T) if transpose_y else y,
        expected,
    )


@needs_bfloat16
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("orders", ORDERS, ids=str)
def test_bfloat16_products_are_summed_in_float32(shape, orders):
    x, y, expected = make_matrices(shape, *orders)
    found = jax.jit(onednn.multiply_bfloat16, static_argnums=(2, 3))(x, y, *orders)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@needs_bfloat16
@pytest.mark.parametrize("orders", ORDERS, ids=str)
def test_gradients_of_bfloat16_are_products(orders):
    transpose_x, transpose_y = orders
    x, y, _ = make_matrices((4, 3, 5), *orders)
    factors = RNG.normal(size=(4, 5)).astype(jnp.bfloat16)

    def loss(x, y):
        return (onednn.multiply_bfloat16(x, y, *orders) * factors).sum()

    x_gradient, y_gradient = jax.grad(loss, (0, 1))(x, y)
    assert x_gradient.dtype == y_gradient.dtype == jnp.bfloat16
    wide_x, wide_y, wide = (each.astype(np.float64) for each in (x, y, factors))
    expected_x = wide @ (wide_y if transpose_y else wide_y.T)
    expected_y = (wide_x if transpose_x else wide_x.T) @ wide
    of_bfloat16 = {"rtol": 2**-8, "atol": 1e-3}
    np.testing.assert_allclose(
        x_gradient.astype(jnp.float32), expected_x.T if transpose_x else expected_x, **of_bfloat16
    )
    np.testing.assert_allclose(
        y_gradient.astype(jnp.float32), expected_y.T if transpose_y else expected_y, **of_bfloat16
    )


@needs_bfloat16
@pytest.mark.parametrize("orders", ORDERS, ids=str)
def test_all_modes_of_differentiation_agree(orders):
    """Forward mode, and forward over reverse, with those of XLA's own product."""
    x, y, _ = make_matrices((4, 3, 5), *orders)
    tangents = tuple(RNG.normal(size=each.shape).astype(jnp.bfloat16) for each in (x, y))
    axes = (0 if orders[0] else 1,), (1 if orders[1] else 0,)

    def plain(x, y):
        return jax.lax.dot_general(x, y, (axes, ((), ())), preferred_element_type=jnp.float32)

    def differentiate(product):
        gradient = jax.grad(lambda *pair: jnp.sin(product(*pair)).sum(), (0, 1))
        return jax.jvp(product, (x, y), tangents), jax.jvp(gradient, (x, y), tangents)

    found = differentiate(lambda x, y: onednn.multiply_bfloat16(x, y, *orders))
    for one, other in zip(*map(jax.tree.leaves, (found, differentiate(plain))), strict=True):
        np.testing.assert_allclose(*(np.asarray(each, np.float32) for each in (one, other)), 2**-5, 2**-5)


@needs_bfloat16
@pytest.mark.parametrize("orders", ORDERS, ids=str)
def test_vmap_over_one_operand(orders):
    x, y, _ = make_matrices((4, 3, 5), *orders)
    several = np.stack([x, 2 * x, 4 * x], axis=1)
    found = jax.vmap(lambda x: onednn.multiply_bfloat16(x, y, *orders), in_axes=1)(several)
    expected = [number * np.asarray(onednn.multiply_bfloat16(x, y, *orders)) for number in (1, 2, 4)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@needs_bfloat16
def test_bfloat16_of_vmap_has_each_product():
    (x, y, first), (other_x, other_y, second) = (make_matrices((3, 4, 5)) for _ in range(2))
    found = jax.vmap(onednn.multiply_bfloat16)(np.stack([x, other_x]), np.stack([y, other_y]))
    np.testing.assert_allclose(found, [first, second], rtol=1e-4, atol=1e-4)


@needs_bfloat16
@pytest.mark.usefixtures("fresh_programs")
def test_a_failure_of_bfloat16_ends_the_program(monkeypatch):
    monkeypatch.setattr(onednn, "_gemm_bfloat16", return_status)
    x, y, _ = make_matrices((2, 3, 5))
    with pytest.raises(jax.errors.JaxRuntimeError, match="status 2"):
        jax.block_until_ready(onednn.multiply_bfloat16(x, y))


@needs_bfloat16
@pytest.mark.parametrize("orders", ORDERS, ids=str)
@pytest.mark.parametrize("shape", [(4, 0, 3), (0, 5, 3), (4, 5, 0)], ids=str)
def test_empty_matrices(shape, orders):
    x, y, expected = make_matrices(shape, *orders)

    def loss(x, y):
        product = onednn.multiply_bfloat16(x, y, *orders)
        return product.sum(), product

    gradients, found = jax.grad(loss, (0, 1), has_aux=True)(x, y)
    np.testing.assert_array_equal(found, expected)
    for gradient in gradients:
        np.testing.assert_array_equal(gradient, np.zeros_like(gradient))


@needs_bfloat16
@pytest.mark.parametrize("gemm", [return_status, saturate], ids=["fails", "writes nothing"])
def test_bfloat16_needs_a_library_that_multiplies(gemm, monkeypatch):
    monkeypatch.setattr(onednn, "_gemm_bfloat16", gemm)
    assert not onednn.multiplies_bfloat16.__wrapped__()


@needs_bfloat16
@pytest.mark.parametrize("flags", ["", "flags : sse avx512f", "flags : avx512_bf16x", None])
def test_bfloat16_needs_instructions(flags, tmp_path, monkeypatch):
    path = tmp_path / "cpuinfo"
    if flags is not None:
        path.write_text(f"model name : avx512_bf16\n{flags}\n")
    monkeypatch.setattr(onednn, "CPU_INFO", str(path))
    assert not onednn.multiplies_bfloat16.__wrapped__()


@pytest.mark.parametrize("library", [None, object()], ids=["no library", "no such product"])
def test_bfloat16_needs_the_library(library, monkeypatch):
    monkeypatch.setattr(onednn, "_library", lambda: library)
    assert not onednn.multiplies_bfloat16.__wrapped__()


@pytest.mark.parametrize("chosen", [None, "active"])
def test_waiting_threads_sleep_unless_chosen(chosen, monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if chosen:
        monkeypatch.setenv("OMP_WAIT_POLICY", chosen)
    with onednn._waiting_threads_sleep():
        assert os.environ["OMP_WAIT_POLICY"] == (chosen or "passive")
    assert os.environ.get("OMP_WAIT_POLICY") == chosen
