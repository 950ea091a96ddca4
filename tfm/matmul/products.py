"""`dot_general`, the product of activations and weights in all layers."""

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
    """Computes `jax.lax.dot_general` of activations and weights in the order that is fastest on a CPU.

    If x has few rows, the weights become the left operand, because a CPU reads them faster there. If x has
    many rows, oneDNN multiplies matrices of bfloat16 where it is installed (`tfm.matmul.onednn`).

    Args:
      x: [..., inputs].
      weights: the input axes and the output axes, in any order.
      dimension_numbers: as in `jax.lax.dot_general`. Products with batch axes are left to JAX.
      max_skinny_rows: the maximum number of rows of x for weights as the left operand. The rows of x are all
        axes except the inputs.
      options: as in `jax.lax.dot_general`.

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
    """Returns which library multiplies matrices of bfloat16 with many rows now: `ONEDNN` or `XLA`.

    Their sums are rounded differently, so the results of a run depend on it.
    """
    is_native = backend.allows_foreign_calls() and onednn.multiplies_bfloat16()
    return ONEDNN if is_native else XLA


def _multiply_matrices(x, weights, input_axes, preferred_element_type=None, **options):
    """Multiplies after reshaping both operands to matrices.

    With more axes, XLA transposes an operand of the weights' gradient, or that gradient, in a separate pass.
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


def _may_be_sharded(x):
    """Returns whether several devices may share x, whose rows a reshape would gather on each device.

    In `jax.shard_map`, and on a mesh of explicit axes, the type of x names axes of the mesh.
    """
    kind = jax.typeof(x)
    return jax.device_count() > 1 or bool(kind.manual_axis_type.varying) or any(kind.sharding.spec)


def _is_matrix(x, input_axes):
    """Returns whether the input axes are all of the first or all of the last axes of x, in order."""
    return _are_first(x, input_axes) or _are_last(x, input_axes)


def _are_first(x, axes):
    return tuple(axis % x.ndim for axis in axes) == tuple(range(len(axes)))


def _are_last(x, axes):
    return tuple(axis % x.ndim for axis in axes) == tuple(range(x.ndim - len(axes), x.ndim))


def _reshape_to_matrix(x, input_axes):
    """Returns (shape of the other axes, whether the inputs are the last axis, matrix)."""
    inputs_last = _are_last(x, input_axes)
    others = x.shape[: x.ndim - len(input_axes)] if inputs_last else x.shape[len(input_axes) :]
    inputs = math.prod(x.shape[axis] for axis in input_axes)
    sizes = (math.prod(others), inputs)
    return others, inputs_last, x.reshape(sizes if inputs_last else sizes[::-1])
