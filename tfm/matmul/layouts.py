"""The memory layout of kernels for decoding on a CPU.

A product with few rows takes about as long as reading the kernel from memory. A CPU reads a kernel about
twice as fast if all weights of an output are next to each other. Training stores kernels in the opposite
order.
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
    """Moves the output axes of each kernel to the front, so that its memory layout suits decoding on a CPU.

    `inputs_first` reverts the order of the axes inside the program that uses the parameters.

    Args:
      params: A tree of parameters. NumPy arrays stay NumPy arrays, so that no program is compiled for them.

    Returns:
      The tree with transposed kernels on a CPU, and the same parameters on other devices.
    """
    return _map_kernels(params, lambda x, inputs: _move_axes(x, range(inputs), range(-inputs, 0)))


def inputs_first(params: Params) -> Params:
    """Reverts `outputs_first`.

    Inside jit this copies nothing, because XLA lets the product read the transposed kernel.
    """
    return _map_kernels(params, lambda x, inputs: _move_axes(x, range(-inputs, 0), range(inputs)))


def count_input_axes(module: str, kernel_axes: int) -> int:
    """Returns how many of the first axes of a kernel are input axes. The other axes are output axes.

    If the module has the name "output", such as the last projection of attention, its kernel has a single
    output axis. Every other kernel has a single input axis.

    Args:
      module: Name of the module that has the kernel. Empty for the outermost module.
      kernel_axes: Number of axes of the kernel.
    """
    return kernel_axes - 1 if module == "output" else 1


def _map_kernels(params: Params, change: Callable[[Array, int], Array]) -> Params:
    """Applies `change(kernel, number of input axes)` to each kernel with at least two axes, on a CPU only."""
    if not backend.is_cpu():
        return params

    def change_leaf(path, x):
        *_, module, name = ["", *(jax.tree_util.keystr((key,), simple=True) for key in path)]
        if name != "kernel" or x.ndim < 2:
            return x
        return change(x, count_input_axes(module, x.ndim))

    return jax.tree_util.tree_map_with_path(change_leaf, params)


def _move_axes(x: Array, source: range, destination: range) -> Array:
    """Moves axes like `jnp.moveaxis`. For a NumPy array, returns a contiguous NumPy array."""
    if isinstance(x, np.ndarray):
        return np.ascontiguousarray(np.moveaxis(x, source, destination))
    return jnp.moveaxis(x, source, destination)
