"""Products with weights, for few rows as for many.

With few rows, as in decoding, a product is as fast as its weights are read. On a CPU they are read best as
the left operand, each row of memory a row of the product: about twice as fast as in the order of training.
"""

import math

import jax
import jax.numpy as jnp

FEW_ROWS = 256


def dot_general(x, weights, dimension_numbers, few_rows=FEW_ROWS, **options):
    """`jax.lax.dot_general` of activations and weights, the weights on the left where the rows are few.

    Args:
      x: [..., inputs].
      weights: the input axes and the output axes, in any order.
      dimension_numbers: as of `jax.lax.dot_general`, without batch axes.
      few_rows: up to so many rows of x, of all its axes but the inputs, the weights are on the left.
      options: as of `jax.lax.dot_general`.

    Returns:
      [..., outputs], whatever the order of the product.
    """
    (x_axes, weight_axes), _ = dimension_numbers
    inputs = math.prod(x.shape[axis] for axis in x_axes)
    if x.size > few_rows * inputs:
        return _as_matrices(x, weights, dimension_numbers, **options)
    product = jax.lax.dot_general(weights, x, ((weight_axes, x_axes), ((), ())), **options)
    outputs = weights.ndim - len(weight_axes)
    return jnp.moveaxis(product, range(outputs), range(-outputs, 0))


def _as_matrices(x, weights, dimension_numbers, **options):
    """The plain order. Kernels of several input or output axes go in as matrices, as do their gradients.

    Otherwise XLA turns the gradient of a kernel [D, H, K] round in a pass of its own.
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


def outputs_first(params):
    """Parameters whose kernels have their output axes first, in memory too: for `inputs_first` where used."""
    return _map_kernels(params, lambda x, inputs: jnp.moveaxis(x, range(inputs), range(-inputs, 0)))


def inputs_first(params):
    """The inverse of `outputs_first`; within jit it moves nothing, the product reads what there is."""
    return _map_kernels(params, lambda x, inputs: jnp.moveaxis(x, range(-inputs, 0), range(inputs)))


def _map_kernels(params, change):
    """Applies change(kernel, number of its input axes); "output" takes heads and features, all others one."""

    def leaf(path, x):
        *_, module, name = [key.key for key in path]
        if name != "kernel":
            return x
        return change(x, x.ndim - 1 if module == "output" else 1)

    return jax.tree_util.tree_map_with_path(leaf, params)
