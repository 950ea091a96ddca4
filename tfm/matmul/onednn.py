"""Products of float32, bfloat16 and 8-bit integers by oneDNN. On many CPUs it is faster than XLA.

The optional package `tfm-native` (`pip install ./native`) provides oneDNN on Linux and x86-64.
"""

import functools
import logging
import types

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

# Maximum number of inputs in `multiply_int8`, because the sums of products must fit into 32 bits.
MAX_INPUTS = (2**31 - 1) // (255 * 128)


@functools.cache
def load_native_package() -> types.ModuleType | None:
    """Imports `tfm_native` and returns it, or returns None if it is not installed or cannot be loaded.

    If it is installed but cannot be loaded, logs a warning with the reason.
    """
    try:
        import tfm_native

        if not hasattr(tfm_native, "QUANTIZED_TARGET"):
            raise ImportError("it is of an older version. Install it again with: pip install ./native")
    except ModuleNotFoundError:
        return None
    except ImportError as error:
        logging.getLogger(__name__).warning(
            "Using XLA instead of oneDNN for products, because tfm_native cannot be loaded: %s", error
        )
        return None
    return tfm_native


def multiplies_int8() -> bool:
    """Returns whether oneDNN is installed and its sums of 8-bit products are exact on this processor.

    Processors without VNNI instructions add pairs of products in 16 bits. These sums may overflow.
    """
    native = load_native_package()
    return native is not None and native.multiplies_int8


def multiplies_bfloat16() -> bool:
    """Returns whether oneDNN is installed and this processor has instructions for products of bfloat16."""
    native = load_native_package()
    return native is not None and native.multiplies_bfloat16


def multiply_int8(x: jax.Array, weights: jax.Array, scales: jax.Array, excess: jax.Array) -> jax.Array:
    """Quantizes the rows of x and multiplies them with quantized weights.

    Call it only if `multiplies_int8` returns True. `tfm.layers.quantization.QuantizedWeights.multiply`
    returns the same numbers and describes the arguments.

    Args:
      x: float32 [rows, inputs] with at most `MAX_INPUTS` inputs.
      weights: int8 [outputs, inputs].
      scales: float32 [outputs].
      excess: int32 [outputs], the sum of the weights of each output times 128.

    Returns:
      float32 [rows, outputs].

    Raises:
      TypeError: If an argument has another dtype.
      ValueError: If x or weights is not a matrix, or if the numbers of inputs differ or exceed `MAX_INPUTS`.
      ModuleNotFoundError: If `tfm_native` is not installed.
    """
    _check_operand("x", x, jnp.float32)
    _check_operand("weights", weights, jnp.int8)
    if x.shape[1] != weights.shape[1] or x.shape[1] > MAX_INPUTS:
        raise ValueError(
            f"Expected x [rows, inputs] and weights [outputs, inputs] with at most {MAX_INPUTS} inputs, "
            f"got {x.shape} and {weights.shape}."
        )
    native = _require_native_package()
    result = jax.ShapeDtypeStruct((x.shape[0], weights.shape[0]), jnp.float32)
    call = jax.ffi.ffi_call(native.QUANTIZED_TARGET, result, vmap_method="sequential")
    return call(x, weights, scales, excess)


def multiply(x: jax.Array, y: jax.Array, transpose_x: bool = False, transpose_y: bool = False) -> jax.Array:
    """Computes the float32 product of two matrices of float32 or bfloat16.

    For bfloat16, call it only if `multiplies_bfloat16` is True. The product can be differentiated in forward
    and in reverse mode, and the derivatives are products of the same kind. Reverse mode first rounds the
    gradient of the result to the dtype of the operands. `jax.vmap` computes the products of a batch one after
    the other.

    Args:
      x: float32 or bfloat16 [M, K], or [K, M] with `transpose_x`.
      y: [K, N] of the dtype of x, or [N, K] with `transpose_y`.
      transpose_x: Whether to transpose x before multiplying.
      transpose_y: Whether to transpose y before multiplying.

    Returns:
      float32 [M, N].

    Raises:
      TypeError: If an argument has another dtype.
      ValueError: If an argument is not a matrix, or if the shapes do not fit together.
      ModuleNotFoundError: If `tfm_native` is not installed.
    """
    dtype = jnp.bfloat16 if x.dtype == jnp.bfloat16 else jnp.float32
    _check_operand("x", x, dtype)
    _check_operand("y", y, dtype)
    if x.shape[0 if transpose_x else 1] != y.shape[1 if transpose_y else 0]:
        raise ValueError(
            f"Expected [M, K] and [K, N] after transposing, got {x.shape} and {y.shape} with "
            f"transpose_x={transpose_x} and transpose_y={transpose_y}."
        )
    _require_native_package()
    return _product.bind(x, y, transpose_x=transpose_x, transpose_y=transpose_y)


def _check_operand(name, x, dtype):
    """Raises a TypeError unless x has this dtype, and a ValueError unless x is a matrix."""
    if x.dtype != dtype:
        raise TypeError(f"Expected {name} of dtype {jnp.dtype(dtype)}, got {x.dtype}.")
    if x.ndim != 2:
        raise ValueError(f"Expected {name} to be a matrix, got the shape {x.shape}.")


def _require_native_package():
    """Returns `tfm_native`. Raises a ModuleNotFoundError if it is not installed or cannot be loaded."""
    native = load_native_package()
    if native is None:
        raise ModuleNotFoundError("oneDNN is not available. Install it with: pip install ./native")
    return native


# JAX does not differentiate foreign calls, and `jax.custom_vjp` has no forward mode. A bilinear primitive
# supports both modes and higher derivatives.
_product = Primitive("tfm_onednn_multiply")


def _call_onednn(x, y, *, transpose_x, transpose_y):
    """Calls oneDNN. The primitive is compiled to this call."""
    result = jax.ShapeDtypeStruct(_product_shape(x, y, transpose_x, transpose_y), jnp.float32)
    native = _require_native_package()
    target = native.BFLOAT16_TARGET if x.dtype == jnp.bfloat16 else native.FLOAT32_TARGET
    return jax.ffi.ffi_call(target, result)(x, y, transpose_x=transpose_x, transpose_y=transpose_y)


def _product_shape(x, y, transpose_x, transpose_y):
    """Returns the shape (M, N) of the product."""
    return x.shape[1 if transpose_x else 0], y.shape[0 if transpose_y else 1]


def _x_gradient(gradient, x, y, *, transpose_x, transpose_y):
    """Returns dX = dZ Y^T for Z = X Y, or its transpose for a transposed x."""
    gradient = gradient.astype(y.dtype)
    if transpose_x:
        return multiply(y, gradient, transpose_y, True).astype(y.dtype)
    return multiply(gradient, y, False, not transpose_y).astype(y.dtype)


def _y_gradient(gradient, x, y, *, transpose_x, transpose_y):
    """Returns dY = X^T dZ for Z = X Y, or its transpose for a transposed y."""
    gradient = gradient.astype(x.dtype)
    if transpose_y:
        return multiply(gradient, x, True, transpose_x).astype(x.dtype)
    return multiply(x, gradient, not transpose_x, False).astype(x.dtype)


def _multiply_each(operands, axes, **options):
    """Computes the products of a batch, for `jax.vmap`.

    `axes` are the batch axes of the operands. An operand with the axis None is the same in all products.
    """
    pairs = list(zip(operands, axes, strict=True))
    size = next(x.shape[axis] for x, axis in pairs if axis is not None)
    stacked = tuple(batching.bdim_at_front(x, axis, size) for x, axis in pairs)
    return jax.lax.map(lambda pair: _product.bind(*pair, **options), stacked), 0


_product.def_impl(jax.jit(_call_onednn, static_argnames=("transpose_x", "transpose_y")))
_product.def_abstract_eval(
    lambda x, y, **options: jax.core.ShapedArray(_product_shape(x, y, **options), jnp.float32)
)
ad.defbilinear(_product, _x_gradient, _y_gradient)
batching.primitive_batchers[_product] = _multiply_each
mlir.register_lowering(_product, mlir.lower_fun(_call_onednn, multiple_results=False), "cpu")
