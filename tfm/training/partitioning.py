"""Runs one pure step on the available devices: jit on one, pmap over the local ones, or jit over a mesh."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from tfm.dropout import PMAP_AXIS, ROW_AXES
from tfm.errors import UserError
from tfm.layers.parameter_axes import PARAMETER_RULES, parameter_axes
from tfm.training.config import TrainingConfig
from tfm.training.step import pad_rows

MESH_AXES = ("data", "fsdp", "tensor")


def _identity(x):
    return x


class Partitioner(NamedTuple):
    """Places state and batches on devices, and compiles the step for that placement.

    Attributes:
      devices: how many share a batch.
      compile: (train_step, a state) -> compiled function of (placed state, placed batch); donates the state.
      place_state, fetch_state: one state, or a restored one, -> the devices, and back to what is saved; also
        of a part of it.
      place_batch: dict of this host's [rows, ...] arrays -> the devices; it pads them with
        rows of zeros to a multiple of the devices, which the loss must not count.
      fetch_metrics: the step's metrics -> one copy.
      like: a state -> what a checkpoint is restored into.
      fetch_weights: parameters of a fetched state -> one copy on this host, for evaluation.
      place_shapes: (a state, a batch) -> the shapes of both as placed, to compile for devices that are not
        here.
    """

    devices: int
    compile: Callable
    place_state: Callable
    place_batch: Callable
    place_shapes: Callable
    fetch_state: Callable = _identity
    fetch_metrics: Callable = _identity
    like: Callable = _identity
    fetch_weights: Callable = _identity


def make_partitioner(config: TrainingConfig, devices: Sequence[jax.Device] | None = None) -> Partitioner:
    """The partitioner of a `TrainingConfig`.

    Args:
      config: says `parallel`, and for a mesh its shape.
      devices: all there are when None.

    Raises:
      UserError: the devices do not divide into the mesh.
    """
    if uses_mesh(config):
        return _mesh_partitioner(config, devices or jax.devices())
    if jax.process_count() > 1:
        raise UserError(f"Several hosts need training.parallel 'mesh', got {config.parallel!r}.")
    devices = devices or jax.local_devices()
    if config.parallel == "jit" or (config.parallel == "auto" and len(devices) == 1):
        return _jit_partitioner(devices[0])
    return _pmap_partitioner(devices)


def uses_mesh(config: TrainingConfig) -> bool:
    """Whether the partitioner of a config is that of a mesh."""
    divides = config.mesh_fsdp * config.mesh_tensor > 1
    return config.parallel == "mesh" or (config.parallel == "auto" and (divides or jax.process_count() > 1))


def _jit_partitioner(device):
    put = functools.partial(jax.device_put, device=device)
    place = functools.partial(_place_shapes, sharding=SingleDeviceSharding(device))

    def place_shapes(state, batch):
        return place(state), place(batch)

    return Partitioner(1, lambda step, _: jax.jit(step, donate_argnums=0), put, put, place_shapes)


def _pmap_partitioner(devices):
    count = len(devices)
    sharding = NamedSharding(Mesh(np.asarray(devices), (PMAP_AXIS,)), PartitionSpec(PMAP_AXIS))

    def compile_step(step, _):
        step = functools.partial(step, distribute=sum_over_axis)
        return jax.pmap(step, axis_name=PMAP_AXIS, devices=devices, donate_argnums=0)

    def place_state(state):
        return jax.device_put(_stack(state, count), sharding)

    def first(tree):
        return _unstack(jax.tree.map(lambda x: x.addressable_data(0), tree))

    def place_batch(batch):
        split = {name: x.reshape(count, -1, *x.shape[1:]) for name, x in _pad_batch(batch, count).items()}
        return jax.device_put(split, sharding)

    def place_shapes(state, batch):
        split = {name: (count, -(-len(x) // count), *x.shape[1:]) for name, x in batch.items()}
        shapes = {name: jax.ShapeDtypeStruct(split[name], x.dtype) for name, x in batch.items()}
        stacked = jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, *x.shape), x.dtype), state)
        return _place_shapes(stacked, sharding), _place_shapes(shapes, sharding)

    return Partitioner(
        count, compile_step, place_state, place_batch, place_shapes, fetch_state=first, fetch_metrics=first
    )


@functools.partial(jax.jit, static_argnums=1)
def _stack(tree, count):
    """Each array `count` times, on a new first axis. One program for all, as is `_unstack`."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *jnp.shape(x))), tree)


@jax.jit
def _unstack(tree):
    return jax.tree.map(lambda x: x[0], tree)


def _mesh_partitioner(config, devices):
    fsdp, tensor = config.mesh_fsdp, config.mesh_tensor
    if len(devices) % (fsdp * tensor):
        raise UserError(
            f"{len(devices)} devices do not divide into training.mesh_fsdp {fsdp} x mesh_tensor {tensor}."
        )
    mesh = Mesh(np.asarray(devices).reshape(-1, fsdp, tensor), MESH_AXES, axis_types=(AxisType.Auto,) * 3)
    rows = NamedSharding(mesh, PartitionSpec(ROW_AXES))
    everywhere = NamedSharding(mesh, PartitionSpec())
    sharers = len(devices) // tensor

    def shardings(state):
        return jax.tree_util.tree_map_with_path(functools.partial(_parameter_sharding, mesh), state)

    def compile_step(step, state):
        places = shardings(state)
        over_rows = functools.partial(_sum_over_mesh, mesh, places.params) if sharers > 1 else None
        return jax.jit(
            functools.partial(step, distribute=over_rows),
            in_shardings=(places, rows),
            out_shardings=(places, everywhere),
            donate_argnums=0,
        )

    def like(state):
        return jax.tree.map(
            lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), state, shardings(state)
        )

    def place_state(state):
        return jax.tree.map(_place, state, shardings(state))

    def fetch_weights(params):
        replicated = jax.jit(_identity, out_shardings=everywhere)(params)
        return jax.tree.map(lambda x: x.addressable_data(0), replicated)

    def place_batch(batch):
        local = _pad_batch(batch, sharers // jax.process_count())
        return {name: jax.make_array_from_process_local_data(rows, x) for name, x in local.items()}

    def place_shapes(state, batch):
        return like(state), _place_shapes(_pad_batch(batch, sharers), rows)

    return Partitioner(
        len(devices),
        compile_step,
        place_state,
        place_batch,
        place_shapes,
        like=like,
        fetch_weights=fetch_weights,
    )


def sum_over_axis(sum_gradients):
    """`distribute` of `make_train_step`: each device computes the gradients of its rows with the same key."""

    def add(params, batch, key):
        return jax.lax.psum(sum_gradients(params, batch, key), PMAP_AXIS)

    return add


def _sum_over_mesh(mesh, places, sum_gradients):
    """`distribute` of `make_train_step`: one key and one dropout mask for all, `tfm.dropout` has its part.

    The compiler alone would add each gradient over devices where it is made: in the compute dtype, inside of
    the loop over scanned layers, a table's once for each of its uses. Here a device computes all gradients of
    its rows, and one sum in float32 follows. Parameters sharded over "fsdp" are gathered before, once.
    """
    specs = jax.tree.map(lambda place: _keep_axes(place.spec, ROW_AXES), places)

    def gather(x, spec):
        return x if "fsdp" not in spec else jax.lax.all_gather(x, "fsdp", axis=spec.index("fsdp"), tiled=True)

    def add(gradient, spec):
        if "fsdp" not in spec:
            return jax.lax.psum(gradient, ROW_AXES)
        axis = spec.index("fsdp")
        return jax.lax.psum(
            jax.lax.psum_scatter(gradient, "fsdp", scatter_dimension=axis, tiled=True), "data"
        )

    def sum_rows(params, batch, key):
        gradients, metrics = sum_gradients(jax.tree.map(gather, params, specs), batch, key)
        return jax.tree.map(add, gradients, specs), jax.lax.psum(metrics, ROW_AXES)

    return jax.shard_map(
        sum_rows,
        mesh=mesh,
        in_specs=(specs, PartitionSpec(ROW_AXES), PartitionSpec()),
        out_specs=(specs, PartitionSpec()),
        # "tensor" stays with the compiler, except where there is none of it to divide.
        axis_names=set(ROW_AXES) if mesh.shape["tensor"] > 1 else set(MESH_AXES),
        check_vma=False,  # else JAX adds gradients of what all devices share wherever it is used
    )


def _keep_axes(spec, axes):
    """A `PartitionSpec` without the mesh axes that are not in `axes`; each of its entries then names one."""
    kept = [[name for name in (entry or ()) if name in axes] for entry in spec]
    return PartitionSpec(*(names[0] if names else None for names in kept))


def _parameter_sharding(mesh, path, x):
    """Where a leaf of the state lives: a parameter by its axes' names, its optimizer state likewise."""
    names = parameter_axes(jax.tree_util.keystr(path, simple=True, separator="/"), jnp.ndim(x))
    axes = (PARAMETER_RULES.get(name, ()) for name in names)
    spec = [
        axis if axis and length % math.prod(mesh.shape[name] for name in axis) == 0 else None
        for axis, length in zip(axes, jnp.shape(x), strict=True)
    ]
    return NamedSharding(mesh, PartitionSpec(*spec))


def _place(x, sharding):
    """A copy of an array that every host has, placed by `sharding`, of which a host may hold a part."""
    if getattr(x, "sharding", None) == sharding:
        return x
    whole = np.asarray(x)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def _place_shapes(tree, sharding):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)


def _pad_batch(batch, count):
    return {name: pad_rows(x, count) for name, x in batch.items()}
