"""Matrix products of activations and weights, and the memory layout of weights that suits them.

A skinny matmul, of few rows as in decoding, takes the time that reading its weights takes. A CPU reads them
best as the left operand, each row of memory a row of the product: about twice as fast as in the order of
training. Products of bfloat16 with many rows are oneDNN's where it is installed and the processor has
instructions for them (`tfm.matmul.onednn`). On other devices all products are plain.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from tfm import backend
from tfm.matmul import onednn

MAX_SKINNY_ROWS = 256
ONEDNN, XLA = "oneDNN", "XLA"
DimensionNumbers = tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]]
Params = TypeVar("Params")  # a tree of parameters


def dot_general(
    x: jax.Array,
    weights: jax.Array,
    dimension_numbers: DimensionNumbers,
    max_skinny_rows: int = MAX_SKINNY_ROWS,
    **options: Any,
) -> jax.Array:
    """`jax.lax.dot_general` of activations and weights; on a CPU as `cpu_dot_general`.

    Args:
      x: [..., inputs].
      weights: the input axes and the output axes, in any order.
      dimension_numbers: as in `jax.lax.dot_general`, which also makes products with batch axes.
      max_skinny_rows: as in `cpu_dot_general`.
      options: as in `jax.lax.dot_general`.

    Returns:
      [..., outputs].
    """
    if backend.is_cpu():
        return cpu_dot_general(x, weights, dimension_numbers, max_skinny_rows, **options)
    return jax.lax.dot_general(x, weights, dimension_numbers, **options)


def cpu_dot_general(
    x: jax.Array,
    weights: jax.Array,
    dimension_numbers: DimensionNumbers,
    max_skinny_rows: int = MAX_SKINNY_ROWS,
    **options: Any,
) -> jax.Array:
    """`jax.lax.dot_general` with the weights on the left where x has few rows, and of matrices elsewhere.

    Where x has many rows, matrices of bfloat16 are multiplied by oneDNN, if it is there.

    Args:
      x, weights, dimension_numbers, options: as in `dot_general`.
      max_skinny_rows: the maximum number of rows of x, all its axes but the inputs, for weights on the left.

    Returns:
      [..., outputs].
    """
    (x_axes, weight_axes), batch_axes = dimension_numbers
    if any(batch_axes):
        return jax.lax.dot_general(x, weights, dimension_numbers, **options)
    inputs = math.prod(x.shape[axis] for axis in x_axes)
    if x.size > max_skinny_rows * inputs:
        if _may_be_divided(x, weights) or not _are_matrices(x, weights, dimension_numbers):
            return jax.lax.dot_general(x, weights, dimension_numbers, **options)
        return _multiply_matrices(x, weights, dimension_numbers[0], **options)
    product = jax.lax.dot_general(weights, x, ((weight_axes, x_axes), ((), ())), **options)
    outputs = weights.ndim - len(weight_axes)
    return jnp.moveaxis(product, range(outputs), range(-outputs, 0))


def _multiply_matrices(x, weights, input_axes, preferred_element_type=None, **options):
    """The plain order, of matrices: the rows of x are one axis, and so are a kernel's inputs and its outputs.

    With more axes XLA transposes an operand of the weights' gradient, or that gradient, in a pass of its own.
    """
    rows, x_inputs_last, x = _as_matrix(x, input_axes[0])
    outputs, weight_inputs_last, weights = _as_matrix(weights, input_axes[1])
    if _suits_onednn(x, weights):
        product = onednn.multiply_bfloat16(x, weights, not x_inputs_last, weight_inputs_last)
        product = product.astype(preferred_element_type or jnp.bfloat16)
    else:
        numbers = (((int(x_inputs_last),), (int(weight_inputs_last),)), ((), ()))
        product = jax.lax.dot_general(
            x, weights, numbers, preferred_element_type=preferred_element_type, **options
        )
    return product.reshape(*rows, *outputs)


def bfloat16_library() -> str:
    """What multiplies matrices of bfloat16 with many rows in programs that are traced now: `ONEDNN` or `XLA`.

    Their sums differ in rounding, and so do runs.
    """
    available = backend.allows_foreign_calls() and onednn.multiplies_bfloat16()
    return ONEDNN if available else XLA


def _suits_onednn(x, weights):
    """Whether oneDNN multiplies these matrices, on one device: those of bfloat16 that are not empty."""
    are_bfloat16 = all(side.dtype == jnp.bfloat16 and side.size > 0 for side in (x, weights))
    return are_bfloat16 and bfloat16_library() == ONEDNN


def _may_be_divided(x, weights):
    """Whether devices may divide an axis: a reshape would gather it, a foreign call knows no devices."""
    return jax.device_count() > 1 or any(map(_has_mesh_axes, (x, weights)))


def _has_mesh_axes(x):
    """Whether the type of x names axes of a mesh, as in `jax.shard_map`, which not all operations allow."""
    kind = jax.typeof(x)
    return bool(kind.manual_axis_type.varying) or any(kind.sharding.spec)


def _are_matrices(x, weights, dimension_numbers):
    """Whether the input axes of x and of the weights come all first or all last, in order."""
    sides = zip((x, weights), dimension_numbers[0], strict=True)
    return all(_are_first(side, axes) or _are_last(side, axes) for side, axes in sides)


def _are_first(x, axes):
    return tuple(axis % x.ndim for axis in axes) == tuple(range(len(axes)))


def _are_last(x, axes):
    return tuple(axis % x.ndim for axis in axes) == tuple(range(x.ndim - len(axes), x.ndim))


def _as_matrix(x, inputs):
    """(shape of the other axes, whether the axes of the inputs come last, the matrix)."""
    count = math.prod(x.shape[axis] for axis in inputs)
    if _are_last(x, inputs):
        return x.shape[: x.ndim - len(inputs)], True, x.reshape(-1, count)
    return x.shape[len(inputs) :], False, x.reshape(count, -1)


def outputs_first(params: Params) -> Params:
    """On a CPU, parameters whose kernels are transposed to have their output axes first, in memory too.

    Undo it with `inputs_first` inside of the program that uses them. Elsewhere the parameters as they are.
    """
    return _map_kernels(params, lambda x, inputs: jnp.moveaxis(x, range(inputs), range(-inputs, 0)))


def inputs_first(params: Params) -> Params:
    """The inverse of `outputs_first`; within jit it copies nothing, the product reads the transposed one."""
    return _map_kernels(params, lambda x, inputs: jnp.moveaxis(x, range(-inputs, 0), range(inputs)))


def _map_kernels(params: Params, change: Callable[[jax.Array, int], jax.Array]) -> Params:
    """Applies change(kernel, number of its input axes): all but the last for "output", the first elsewhere.

    Any number is correct, since `inputs_first` inverts it; this one is the fastest.
    """
    if not backend.is_cpu():
        return params

    def leaf(path, x):
        *_, module, name = [key.key for key in path]
        if name != "kernel":
            return x
        return change(x, x.ndim - 1 if module == "output" else 1)

    return jax.tree_util.tree_map_with_path(leaf, params)
