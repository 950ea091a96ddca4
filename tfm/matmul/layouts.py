"""The memory layout of kernels for decoding on a CPU.

A product with few rows takes as long as reading its weights. A CPU reads them about twice as fast if all
weights of one output are next to each other. Training stores them in the opposite order.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from tfm import backend

Params = TypeVar("Params")  # a tree of parameters
Array = TypeVar("Array", np.ndarray, jax.Array)


def outputs_first(params: Params) -> Params:
    """Moves the output axes of each kernel to the front, in memory too, if programs run on a CPU.

    `inputs_first` reverts this inside the program that uses the parameters.

    Args:
      params: a tree of parameters. NumPy arrays stay NumPy arrays, so that no program is compiled for them.

    Returns:
      The tree with transposed kernels on a CPU, and the same parameters elsewhere.
    """
    return _map_kernels(params, lambda x, inputs: _move_axes(x, range(inputs), range(-inputs, 0)))


def inputs_first(params: Params) -> Params:
    """Reverts `outputs_first`. Inside jit it copies nothing: the product reads the transposed kernel."""
    return _map_kernels(params, lambda x, inputs: _move_axes(x, range(-inputs, 0), range(inputs)))


def count_input_axes(module: str, kernel_axes: int) -> int:
    """Returns how many of the first axes of a kernel are its inputs.

    The kernel of a module with the name "output", such as the last projection of attention, has a single
    output axis. Every other kernel has a single input axis.

    Args:
      module: the name of the module that has the kernel; empty for the outermost module.
      kernel_axes: the number of axes of the kernel.
    """
    return kernel_axes - 1 if module == "output" else 1


def _map_kernels(params: Params, change: Callable[[Array, int], Array]) -> Params:
    """Applies `change(kernel, number of input axes)` to each kernel of at least two axes on a CPU."""
    if not backend.is_cpu():
        return params

    def change_leaf(path, x):
        *_, module, name = ["", *(jax.tree_util.keystr((key,), simple=True) for key in path)]
        if name != "kernel" or x.ndim < 2:
            return x
        return change(x, count_input_axes(module, x.ndim))

    return jax.tree_util.tree_map_with_path(change_leaf, params)


def _move_axes(x: Array, source: range, destination: range) -> Array:
    """Returns `jnp.moveaxis`, or a contiguous NumPy array for a NumPy array."""
    if isinstance(x, np.ndarray):
        return np.ascontiguousarray(np.moveaxis(x, source, destination))
    return jnp.moveaxis(x, source, destination)
