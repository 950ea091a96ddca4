"""Products of 8-bit integers and of bfloat16 on a CPU by oneDNN, which compiled programs call.

They are faster than XLA's own: integers on processors with VNNI or AMX, from `MIN_ROWS` rows on, and bfloat16
on processors with instructions for it. The extra `onednn` installs the library, which this module calls by
ctypes.
"""

import contextlib
import ctypes
import functools
import importlib.metadata
import os
import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from tfm.matmul import foreign_call

WHEEL, LIBRARY = "onednn-cpu-gomp", "libdnnl.so.3"
MIN_ROWS = 16  # with fewer, the call takes longer than the product of integers
MAX_INPUTS = (2**31 - 1) // (255 * 128)  # of a sum in 32 bits
BFLOAT16 = "dnnl_gemm_bf16bf16f32"  # a function of the library
CPU_INFO = "/proc/cpuinfo"
AS_IS, TRANSPOSED, ONE_OFFSET = b"N", b"T", b"F"


@functools.cache
def is_available() -> bool:
    """Whether oneDNN is installed, and this processor's sums of 8-bit products are exact.

    Without VNNI two products are first added in 16 bits, which may not hold them.
    """
    if _library() is None:
        return False
    x, weights = np.full((2, 64), 255, np.uint8), np.full((3, 64), 127, np.int8)
    found = np.zeros((2, 3), np.int32)
    _gemm(*found.shape, 64, x.ctypes.data, weights.ctypes.data, found.ctypes.data)
    return bool((found == 64 * 255 * 127).all())


@functools.cache
def multiplies_bfloat16() -> bool:
    """Whether oneDNN is installed, multiplies bfloat16, and this processor has instructions for that.

    oneDNN may be built, or told by ONEDNN_MAX_CPU_ISA, not to.
    """
    if _library() is None or not hasattr(_library(), BFLOAT16) or not _has_instructions():
        return False
    x, found = np.full((2, 2), 3, jnp.bfloat16), np.zeros((2, 2), np.float32)
    operand = (x.ctypes.data, 2, False)
    return _gemm_bfloat16(2, 2, 2, operand, operand, found.ctypes.data) == 0 and bool((found == 18).all())


def _has_instructions():
    try:
        with open(CPU_INFO, encoding="utf-8") as file:
            return re.search(r"^flags\s*:.*\bavx512_bf16\b", file.read(), re.MULTILINE) is not None
    except OSError:
        return False


def multiply(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Sums of products, exact: x @ weights.T.

    Args:
      x: uint8 [rows, inputs], of at most `MAX_INPUTS` inputs.
      weights: int8 [outputs, inputs].

    Returns:
      int32 [rows, outputs].
    """
    assert is_available(), "see is_available"
    assert x.ndim == weights.ndim == 2, f"{x.shape} and {weights.shape}"
    assert x.shape[1] == weights.shape[1], f"{x.shape} and {weights.shape}"
    assert x.shape[1] <= MAX_INPUTS, "the sums may not fit into 32 bits"
    assert (x.dtype, weights.dtype) == (jnp.uint8, jnp.int8), "read as such, whatever they are"
    shape = jax.ShapeDtypeStruct((x.shape[0], weights.shape[0]), jnp.int32)
    return jax.ffi.ffi_call(_register_integers(), shape, vmap_method="sequential")(x, weights)


def multiply_bfloat16(
    x: jax.Array, y: jax.Array, transpose_x: bool = False, transpose_y: bool = False
) -> jax.Array:
    """The product of two matrices, either of them transposed first or not, summed in float32.

    Its derivatives, forward and reverse, are products of the same kind, for which the gradient of the result
    is rounded to bfloat16. vmap makes one product after the other.

    Args:
      x: bfloat16 [M, K], or [K, M] to be transposed.
      y: bfloat16 [K, N], or [N, K] to be transposed.

    Returns:
      float32 [M, N].
    """
    assert multiplies_bfloat16(), "see multiplies_bfloat16"
    assert x.dtype == y.dtype == jnp.bfloat16, "read as such, whatever they are"
    assert x.ndim == y.ndim == 2, f"{x.shape} and {y.shape}"
    inner = x.shape[0 if transpose_x else 1]
    assert inner == y.shape[1 if transpose_y else 0], f"{x.shape} and {y.shape}"
    if inner == 0:  # oneDNN ends with an error or writes nothing
        return jnp.zeros(_product_shape(x, y, transpose_x, transpose_y), jnp.float32)
    return _bfloat16_product.bind(x, y, transpose_x=transpose_x, transpose_y=transpose_y)


# A primitive of its own: JAX differentiates no foreign call, and `jax.custom_vjp` has no forward mode.
_bfloat16_product = Primitive("tfm_onednn_multiply_bfloat16")


def _call_bfloat16(x, y, *, transpose_x, transpose_y):
    """What the primitive is compiled to, and does where it is called outside of a compiled function."""
    result = jax.ShapeDtypeStruct(_product_shape(x, y, transpose_x, transpose_y), jnp.float32)
    return jax.ffi.ffi_call(_register_bfloat16(transpose_x, transpose_y), result)(x, y)


def _product_shape(x, y, transpose_x, transpose_y):
    return x.shape[1 if transpose_x else 0], y.shape[0 if transpose_y else 1]


def _x_gradient(gradient, x, y, *, transpose_x, transpose_y):
    """With Z = X Y: dX = dZ Y^T; the transpose of that for the transpose of X."""
    gradient = gradient.astype(jnp.bfloat16)
    if transpose_x:
        return multiply_bfloat16(y, gradient, transpose_y, True).astype(jnp.bfloat16)
    return multiply_bfloat16(gradient, y, False, not transpose_y).astype(jnp.bfloat16)


def _y_gradient(gradient, x, y, *, transpose_x, transpose_y):
    """With Z = X Y: dY = X^T dZ; the transpose of that for the transpose of Y."""
    gradient = gradient.astype(jnp.bfloat16)
    if transpose_y:
        return multiply_bfloat16(gradient, x, True, transpose_x).astype(jnp.bfloat16)
    return multiply_bfloat16(x, gradient, not transpose_x, False).astype(jnp.bfloat16)


def _multiply_each(operands, axes, **transposed):
    """The products of a batch, of which one operand may be the same for all."""
    size = next(x.shape[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None)
    first = [batching.bdim_at_front(x, axis, size) for x, axis in zip(operands, axes, strict=True)]
    return jax.lax.map(lambda pair: _bfloat16_product.bind(*pair, **transposed), tuple(first)), 0


_bfloat16_product.def_impl(jax.jit(_call_bfloat16, static_argnames=("transpose_x", "transpose_y")))
_bfloat16_product.def_abstract_eval(
    lambda x, y, **transposed: jax.core.ShapedArray(_product_shape(x, y, **transposed), jnp.float32)
)
ad.defbilinear(_bfloat16_product, _x_gradient, _y_gradient)
batching.primitive_batchers[_bfloat16_product] = _multiply_each
mlir.register_lowering(_bfloat16_product, mlir.lower_fun(_call_bfloat16, multiple_results=False), "cpu")


@functools.cache
def _register_integers():
    """The target of `multiply`."""

    def call(arguments, results):
        x, weights, result = arguments[0].contents, arguments[1].contents, results[0].contents
        sizes = (x.shape[0], weights.shape[0], x.shape[1])
        return _problem(_gemm(*sizes, x.data, weights.data, result.data))

    target = "tfm_onednn_multiply"
    foreign_call.register(target, call)
    return target


@functools.cache
def _register_bfloat16(transpose_x, transpose_y):
    """The target of `multiply_bfloat16`: one for each pair of orders."""

    def call(arguments, results):
        x, y, result = arguments[0].contents, arguments[1].contents, results[0].contents
        inner = x.shape[0 if transpose_x else 1]
        left, right = (x.data, x.shape[1], transpose_x), (y.data, y.shape[1], transpose_y)
        return _problem(_gemm_bfloat16(result.shape[0], result.shape[1], inner, left, right, result.data))

    target = f"tfm_onednn_multiply_bfloat16_{transpose_x:d}{transpose_y:d}"
    foreign_call.register(target, call)
    return target


def _problem(status):
    return f"oneDNN ended with status {status}" if status else None


@functools.cache
def _library():
    """oneDNN's library: the wheel's, or the system's; None where there is neither."""
    try:
        files = importlib.metadata.files(WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for path in [str(file.locate()) for file in files if file.name == LIBRARY] + [LIBRARY]:
        try:
            with _waiting_threads_sleep():
                library = ctypes.CDLL(path)
            return _declare(library)
        except (OSError, AttributeError):  # none, or one without that product
            continue
    return None


@contextlib.contextmanager
def _waiting_threads_sleep():
    """OpenMP as loaded inside lets its threads sleep between products, so that XLA has the cores."""
    name = "OMP_WAIT_POLICY"
    if name in os.environ:
        yield
        return
    os.environ[name] = "passive"
    try:
        yield
    finally:
        del os.environ[name]


def _declare(library):
    """The library, which knows what its functions take; it may have no products of bfloat16."""
    order, size, scale, data = ctypes.c_char, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
    matrix_x, matrix_weights = (data, size, ctypes.c_uint8), (data, size, ctypes.c_int8)
    integers = [*(order,) * 3, *(size,) * 3, scale, *matrix_x, *matrix_weights, scale, data, size, data]
    library.dnnl_gemm_u8s8s32.argtypes = integers
    if hasattr(library, BFLOAT16):
        bfloat16 = [*(order,) * 2, *(size,) * 3, scale, data, size, data, size, scale, data, size]
        getattr(library, BFLOAT16).argtypes = bfloat16
    return library


@functools.cache
def _set_threads():
    """A function of the number of threads of the calling thread's products."""
    try:
        return ctypes.CDLL("libgomp.so.1").omp_set_num_threads
    except OSError:  # a library of the system may have threads of another kind
        return lambda count: None


CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_NO_OFFSET = ctypes.c_int32(0)


def _gemm(rows, outputs, inputs, x, weights, result):
    """`multiply` of addresses, on half of the cores, as two batches decode at once; 0 for success."""
    _set_threads()(max(1, CORES // 2))
    sizes = (rows, outputs, inputs)
    left, right = (x, inputs, 0), (weights, inputs, 0)  # address, length of a row, zero point
    last = (0.0, result, outputs, ctypes.addressof(_NO_OFFSET))
    return _library().dnnl_gemm_u8s8s32(AS_IS, TRANSPOSED, ONE_OFFSET, *sizes, 1.0, *left, *right, *last)


def _gemm_bfloat16(rows, columns, inner, left, right, result):
    """`multiply_bfloat16` of (address, length of a row, whether transposed), on all cores; 0 for success."""
    _set_threads()(CORES)
    (x, x_length, transpose_x), (y, y_length, transpose_y) = left, right
    orders = (TRANSPOSED if transpose_x else AS_IS, TRANSPOSED if transpose_y else AS_IS)
    sizes = (rows, columns, inner)
    last = (0.0, result, columns)
    return getattr(_library(), BFLOAT16)(*orders, *sizes, 1.0, x, x_length, y, y_length, *last)
