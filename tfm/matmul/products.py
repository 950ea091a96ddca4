"""`dot_general`, which computes the products of activations and kernels in all layers."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tfm import backend
from tfm.matmul import onednn

MAX_SKINNY_ROWS = 256
ONEDNN, XLA = "oneDNN", "XLA"
Axes = Sequence[int]
DimensionNumbers = tuple[tuple[Axes, Axes], tuple[Axes, Axes]]


def dot_general(
    x: jax.Array,
    weights: jax.Array,
    dimension_numbers: DimensionNumbers,
    max_skinny_rows: int = MAX_SKINNY_ROWS,
    **options: Any,
) -> jax.Array:
    """Computes the product of activations and weights in the way that is fastest on the device.

    On a CPU there are two special cases. If x has few rows, the weights become the left operand, because a
    CPU reads a left operand faster. If x has many rows and both operands are bfloat16, oneDNN computes the
    product where it is installed (`tfm.matmul.onednn`). Otherwise, and on other devices, this is
    `jax.lax.dot_general`.

    Args:
      x: [..., inputs].
      weights: An array with the input axes and the output axes, in any order.
      dimension_numbers: See `jax.lax.dot_general`. `jax.lax.dot_general` computes products with batch axes.
      max_skinny_rows: The weights become the left operand if x has at most this number of rows. The number
        of rows is the product of all axes of x except the inputs.
      **options: See `jax.lax.dot_general`.

    Returns:
      [..., outputs].
    """
    (x_axes, weight_axes), batch_axes = dimension_numbers
    if any(batch_axes) or not backend.is_cpu():
        return jax.lax.dot_general(x, weights, dimension_numbers, **options)
    if x.size <= max_skinny_rows * math.prod(x.shape[axis] for axis in x_axes):
        product = jax.lax.dot_general(weights, x, ((weight_axes, x_axes), ((), ())), **options)
        outputs = weights.ndim - len(weight_axes)
        return jnp.moveaxis(product, range(outputs), range(-outputs, 0))
    operands = ((x, x_axes), (weights, weight_axes))
    if any(_may_be_sharded(operand) or not _is_matrix(operand, axes) for operand, axes in operands):
        return jax.lax.dot_general(x, weights, dimension_numbers, **options)
    return _multiply_matrices(x, weights, (x_axes, weight_axes), **options)


def bfloat16_library() -> str:
    """Returns the library that multiplies bfloat16 matrices with many rows: `ONEDNN` or `XLA`.

    The two libraries round sums differently, so the results of a run depend on the library.
    """
    is_native = backend.allows_foreign_calls() and onednn.multiplies_bfloat16()
    return ONEDNN if is_native else XLA


def _multiply_matrices(x, weights, input_axes, preferred_element_type=None, **options):
    """Reshapes both operands to matrices and multiplies them: [..., inputs] -> [..., outputs].

    For operands with more than two axes, XLA would transpose an operand or the result in a separate pass when
    it computes the gradient of the weights.
    """
    rows, x_inputs_last, x = _reshape_to_matrix(x, input_axes[0])
    outputs, weight_inputs_last, weights = _reshape_to_matrix(weights, input_axes[1])
    if all(side.dtype == jnp.bfloat16 for side in (x, weights)) and bfloat16_library() == ONEDNN:
        product = onednn.multiply_bfloat16(x, weights, not x_inputs_last, weight_inputs_last)
        product = product.astype(preferred_element_type or jnp.bfloat16)
    else:
        numbers = (((int(x_inputs_last),), (int(weight_inputs_last),)), ((), ()))
        product = jax.lax.dot_general(
            x, weights, numbers, preferred_element_type=preferred_element_type, **options
        )
    return product.reshape(*rows, *outputs)


def _may_be_sharded(x: jax.Array) -> bool:
    """Returns whether x may be divided over several devices. A reshape would gather its rows on each device.

    Inside of `jax.shard_map`, and on a mesh with explicit axes, the type of x contains names of mesh axes.
    """
    kind = jax.typeof(x)
    return jax.device_count() > 1 or bool(kind.manual_axis_type.varying) or any(kind.sharding.spec)


def _is_matrix(x: jax.Array, input_axes: Axes) -> bool:
    """Returns whether the input axes are the first axes or the last axes of x, in order.

    Only then can x be reshaped to a matrix without moving data.
    """
    return _are_first(x, input_axes) or _are_last(x, input_axes)


def _are_first(x: jax.Array, axes: Axes) -> bool:
    """Returns whether the axes are the first axes of x, in order."""
    return tuple(axis % x.ndim for axis in axes) == tuple(range(len(axes)))


def _are_last(x: jax.Array, axes: Axes) -> bool:
    """Returns whether the axes are the last axes of x, in order."""
    return tuple(axis % x.ndim for axis in axes) == tuple(range(x.ndim - len(axes), x.ndim))


def _reshape_to_matrix(x, input_axes):
    """Reshapes x to a matrix of its input axes and its other axes.

    Returns:
      (shape of the other axes, whether the inputs are the last axis of the matrix, matrix).
    """
    inputs_last = _are_last(x, input_axes)
    others = x.shape[: x.ndim - len(input_axes)] if inputs_last else x.shape[len(input_axes) :]
    inputs = math.prod(x.shape[axis] for axis in input_axes)
    sizes = (math.prod(others), inputs)
    return others, inputs_last, x.reshape(sizes if inputs_last else sizes[::-1])
