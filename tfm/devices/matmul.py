"""`dot_general`, which computes the products of activations and weights in all layers."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tfm.devices import backend

Axes = Sequence[int]
DimensionNumbers = tuple[tuple[Axes, Axes], tuple[Axes, Axes]]


def dot_general(
    x: jax.Array,
    weights: jax.Array,
    dimension_numbers: DimensionNumbers,
    max_skinny_rows: int = 0,
    **options: Any,
) -> jax.Array:
    """Computes the product of activations and weights in the order that is fastest on a CPU.

    If x has few rows, the weights can become the left operand, which suits weights [outputs, inputs] such as
    embeddings. On other devices, this is `jax.lax.dot_general`.

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
    if x.size > max_skinny_rows * math.prod(x.shape[axis] for axis in x_axes):
        return _multiply(x, weights, (x_axes, weight_axes), **options)
    product = _multiply(weights, x, (weight_axes, x_axes), **options)
    outputs = weights.ndim - len(weight_axes)
    return jnp.moveaxis(product, range(outputs), range(-outputs, 0))


def _multiply(x: jax.Array, y: jax.Array, input_axes: tuple[Axes, Axes], **options: Any) -> jax.Array:
    """Reshapes both operands to matrices and multiplies them: [..., inputs] -> [..., outputs].

    For operands with more than two axes, XLA would transpose an operand or the result in a separate pass when
    it computes the gradient of the weights. Operands that cannot be reshaped are multiplied as they are.
    """
    operands = list(zip((x, y), input_axes, strict=True))
    if any(_may_be_sharded(operand) or not _is_matrix(operand, axes) for operand, axes in operands):
        return jax.lax.dot_general(x, y, (input_axes, ((), ())), **options)
    (rows, x_inputs_last, x), (columns, y_inputs_last, y) = (_reshape_to_matrix(*pair) for pair in operands)
    numbers = (((int(x_inputs_last),), (int(y_inputs_last),)), ((), ()))
    return jax.lax.dot_general(x, y, numbers, **options).reshape(*rows, *columns)


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


def _reshape_to_matrix(x: jax.Array, input_axes: Axes) -> tuple[tuple[int, ...], bool, jax.Array]:
    """Reshapes x to a matrix of its input axes and its other axes.

    Returns:
      (shape of the other axes, whether the inputs are the last axis of the matrix, matrix).
    """
    inputs_last = _are_last(x, input_axes)
    others = x.shape[: x.ndim - len(input_axes)] if inputs_last else x.shape[len(input_axes) :]
    inputs = math.prod(x.shape[axis] for axis in input_axes)
    sizes = (math.prod(others), inputs)
    return others, inputs_last, x.reshape(sizes if inputs_last else sizes[::-1])
