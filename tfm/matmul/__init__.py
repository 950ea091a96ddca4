"""Matrix products of activations and weights, and the memory layout of weights that suits them.

A skinny matmul, of few rows as in decoding, takes the time that reading its weights takes. A CPU reads them
best as the left operand, each row of memory a row of the product: about twice as fast as in the order of
training. On other devices all products are plain.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from tfm import backend

MAX_SKINNY_ROWS = 256
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
      dimension_numbers: as in `jax.lax.dot_general`, without batch axes.
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

    Args:
      x, weights, dimension_numbers, options: as in `dot_general`.
      max_skinny_rows: the maximum number of rows of x, all its axes but the inputs, for weights on the left.

    Returns:
      [..., outputs].
    """
    (x_axes, weight_axes), _ = dimension_numbers
    inputs = math.prod(x.shape[axis] for axis in x_axes)
    if x.size > max_skinny_rows * inputs:
        return _matrix_product(x, weights, dimension_numbers, **options)
    product = jax.lax.dot_general(weights, x, ((weight_axes, x_axes), ((), ())), **options)
    outputs = weights.ndim - len(weight_axes)
    return jnp.moveaxis(product, range(outputs), range(-outputs, 0))


def _matrix_product(x, weights, dimension_numbers, **options):
    """The plain order. Kernels of several input or output axes are reshaped to matrices.

    Otherwise XLA transposes the gradient of a kernel [D, H, K] in a pass of its own.
    """
    (x_axes, weight_axes), batch_axes = dimension_numbers
    count = len(weight_axes)
    last = tuple(range(x.ndim - count, x.ndim))
    if tuple(weight_axes) != tuple(range(count)) or tuple(a % x.ndim for a in x_axes) != last:
        return jax.lax.dot_general(x, weights, dimension_numbers, **options)
    rows, outputs = x.shape[: x.ndim - count], weights.shape[count:]
    inputs = math.prod(weights.shape[:count])
    numbers = (((len(rows),), (0,)), batch_axes)
    product = jax.lax.dot_general(x.reshape(*rows, inputs), weights.reshape(inputs, -1), numbers, **options)
    return product.reshape(*rows, *outputs)


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
