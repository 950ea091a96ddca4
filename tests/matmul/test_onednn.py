"""Products of 8-bit integers by oneDNN against NumPy, and what happens where it fails or is not there."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.matmul import onednn

RNG = np.random.default_rng(0)
SHAPES = [(1, 1, 1), (2, 3, 5), (17, 40, 33), (32, 2048, 8)]  # rows, inputs, outputs

pytestmark = pytest.mark.skipif(not onednn.is_available(), reason="oneDNN or VNNI is not here")


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


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_exact(shape):
    x, weights = make_operands(*shape)
    found = jax.jit(onednn.multiply)(x, weights)
    assert found.dtype == jnp.int32
    np.testing.assert_array_equal(found, expected_product(x, weights))


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_sums_are_exact(sign):
    x, weights = np.full((2, 4096), 255, np.uint8), np.full((3, 4096), sign * 127, np.int8)
    np.testing.assert_array_equal(onednn.multiply(x, weights), expected_product(x, weights))


def test_as_many_inputs_as_32_bits_hold():
    largest = onednn.MAX_INPUTS * 255 * 128
    assert largest < 2**31 <= largest + 255 * 128


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


def test_each_element_of_vmap_has_its_product():
    pairs = [make_operands(3, 4, 5) for _ in range(2)]
    found = jax.vmap(onednn.multiply)(*map(np.stack, zip(*pairs, strict=True)))
    np.testing.assert_array_equal(found, [expected_product(*pair) for pair in pairs])


def return_status(*arguments):
    return 2


def raise_error(*arguments):
    raise ZeroDivisionError("a mistake of the handler")


@pytest.mark.usefixtures("fresh_programs")
@pytest.mark.parametrize(
    ("gemm", "reason"), [(return_status, "status 2"), (raise_error, "a mistake of the handler")]
)
def test_a_failure_ends_the_program(gemm, reason, monkeypatch):
    monkeypatch.setattr(onednn, "_gemm", gemm)
    with pytest.raises(jax.errors.JaxRuntimeError, match=reason):
        jax.block_until_ready(onednn.multiply(*make_operands(2, 3, 5)))


def saturate(rows, outputs, inputs, x, weights, result):
    return 0  # a result that is left as it is, as wrong as any


@pytest.mark.parametrize(
    ("name", "replacement"),
    [("_library", lambda: None), ("_gemm", return_status), ("_gemm", saturate)],
    ids=["not installed", "fails", "is not exact"],
)
def test_it_is_not_used_where_it(name, replacement, monkeypatch):
    monkeypatch.setattr(onednn, name, replacement)
    assert not onednn.is_available.__wrapped__()
