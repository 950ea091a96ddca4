"""The division of arrays over a mesh of devices.

The axes "data" and "fsdp" divide rows, and the axes "fsdp" and "tensor" divide parameters. A program that
reads divided parameters and rows needs no other change: XLA divides its work and leaves parameters in place.

Modules do not depend on the number or the layout of devices. A module class names the axes of the parameters
below it in its attribute `parameter_axes`:

    class SwiGLU(nn.Module):
        parameter_axes = {"gate/kernel": ("model", "hidden"), "output/kernel": ("hidden", "model")}

The keys are paths below the module. Each value has a name or None for each axis of the parameter.
`PARAMETER_RULES` maps the names to the axes of a mesh. An axis without a name is not sharded.
"""

import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from tfm.devices.rows import ROW_AXES
from tfm.io.tree_paths import join_path

Axes = tuple[str | None, ...]
NO_AXES: Mapping[str, Axes] = types.MappingProxyType({})

MESH_AXES = ("data", "fsdp", "tensor")
# {name of a parameter's axis: mesh axis that divides it}. Other axes are not divided.
PARAMETER_RULES = {"vocabulary": "tensor", "heads": "tensor", "hidden": "tensor", "model": "fsdp"}


def make_mesh(devices: Sequence[jax.Device], fsdp: int, tensor: int) -> Mesh:
    """Returns the mesh [data, fsdp, tensor] of devices whose number is a multiple of `fsdp` x `tensor`."""
    shape = np.asarray(devices).reshape(-1, fsdp, tensor)
    return Mesh(shape, MESH_AXES, axis_types=(AxisType.Auto,) * 3)


def record_axes(init: Callable[..., Any], *arguments: Any) -> tuple[Any, dict[str, Axes]]:
    """Computes the shapes of new variables, and records the names of their axes.

    Args:
      init: Function that calls `init` of one or more Linen modules. It must not be a jitted function that JAX
        has traced before, because JAX would not call its modules again.
      *arguments: Arguments of the function. Only their shapes matter.

    Returns:
      The shapes that the function returns, and {path of a parameter in its module: names of its axes}.
    """
    axes: dict[str, Axes] = {}

    def record(call: Callable, arguments: tuple, keywords: dict[str, Any], context: Any) -> Any:
        for path, names in getattr(context.module, "parameter_axes", {}).items():
            axes["/".join((*context.module.path, path))] = names
        return call(*arguments, **keywords)

    with nn.intercept_methods(record):
        return jax.eval_shape(init, *arguments), axes


def find_axes(axes: Mapping[str, Axes], path: str, rank: int) -> Axes:
    """Returns the names of the axes of an array in a tree whose paths end with the paths of parameters.

    Args:
      axes: The second result of `record_axes`.
      path: The names on the way to the array, separated by "/". An array of the optimizer state whose path
        ends with the path of a parameter gets the same names.
      rank: Number of axes of the array.

    Returns:
      A name or None for each axis.

    Examples:
      >>> find_axes({"feed_forward/hidden/kernel": ("model", "hidden")}, "mu/feed_forward/hidden/kernel", 2)
      ('model', 'hidden')
    """
    parts = path.split("/")
    for start in range(len(parts)):  # the longest end first
        names = axes.get("/".join(parts[start:]))
        if names is not None and len(names) == rank:
            return names
    return (None,) * rank


def shard_parameters(tree: Any, mesh: Mesh, axes: Mapping[str, Axes]) -> Any:
    """Returns the tree of `NamedSharding`s of variables, optimizer state, or a whole train state.

    An axis whose length the devices do not divide evenly is not divided.

    Args:
      tree: tree of arrays or of their shapes.
      mesh: see `make_mesh`.
      axes: names of the axes of parameters, see `record_axes`.
    """

    def shard(path, x):
        names = find_axes(axes, join_path(path), jnp.ndim(x))
        mesh_axes = [None if name is None else PARAMETER_RULES.get(name) for name in names]
        spec = [
            axis if axis and length % mesh.shape[axis] == 0 else None
            for axis, length in zip(mesh_axes, jnp.shape(x), strict=True)
        ]
        return NamedSharding(mesh, PartitionSpec(*spec))

    return jax.tree_util.tree_map_with_path(shard, tree)


def find_mesh(variables: Any) -> Mesh | None:
    """Returns the mesh over which variables are divided, or None if they are on one device or on the host."""
    for x in jax.tree.leaves(variables):
        sharding = getattr(x, "sharding", None)
        if isinstance(sharding, NamedSharding) and sharding.mesh.size > 1:
            return cast(Mesh, sharding.mesh)  # arrays with values have no abstract mesh
    return None


def count_row_shards(variables: Any) -> int:
    """Returns into how many parts `place_rows` divides rows."""
    mesh = find_mesh(variables)
    return 1 if mesh is None else math.prod(mesh.shape[axis] for axis in ROW_AXES)


def place_rows(rows: Any, like: Any) -> Any:
    """Divides rows over the devices that hold some variables, so that each device computes its share.

    Args:
      rows: tree of arrays [B, ...], NumPy arrays or random keys. Every host has all rows.
      like: the variables. If they are on one device, nothing changes.

    Returns:
      The tree with the rows on the devices, and rows of zeros at the end, so that all shares are equal.
    """
    mesh = find_mesh(like)
    if mesh is None:
        return rows
    shards = count_row_shards(like)
    where = NamedSharding(mesh, PartitionSpec(ROW_AXES))

    def place(x):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(place(jax.random.key_data(x)), impl=jax.random.key_impl(x))
        padded = pad_rows(np.asarray(x), shards)
        return jax.make_array_from_callback(padded.shape, where, lambda index: padded[index])

    return jax.tree.map(place, rows)


def place_copies(tree: Any, like: Any) -> Any:
    """Places a copy of each array on every device that holds some variables.

    Args:
      tree: tree of arrays. Every host has all of them.
      like: the variables. If they are on one device, the arrays move to the default device.
    """
    mesh = find_mesh(like)
    return jax.device_put(tree, None if mesh is None else NamedSharding(mesh, PartitionSpec()))


def pad_rows(x: np.ndarray, count: int) -> np.ndarray:
    """Pads an array with rows of zeros to a multiple of `count` rows."""
    return np.pad(x, [(0, -len(x) % count)] + [(0, 0)] * (x.ndim - 1))


def fetch(tree: Any) -> Any:
    """Returns NumPy arrays of a tree of arrays, all rows on every host. All hosts must call this."""

    def gather(x):
        is_here = getattr(x, "is_fully_addressable", True)
        return x if is_here else multihost_utils.process_allgather(x, tiled=True)

    return jax.device_get(jax.tree.map(gather, tree))
