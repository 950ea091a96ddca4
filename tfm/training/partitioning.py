"""The placement of arrays on devices, and the sums of a step over devices."""

import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tfm.devices.memory import count_device_bytes
from tfm.devices.mesh import MESH_AXES, NO_AXES, Axes, make_mesh, pad_rows, record_axes, shard_parameters
from tfm.devices.rows import PMAP_AXIS, ROW_AXES
from tfm.devices.shards import SHARD_AXIS, Shard, gather_by_layer
from tfm.errors import UserError
from tfm.training.config import TrainingConfig
from tfm.training.step import Sums, merge_trees
from tfm.training.task import Variables

log = logging.getLogger(__name__)


def make_partitioner(
    config: TrainingConfig,
    devices: Sequence[jax.Device] | None = None,
    axes: Mapping[str, Axes] = NO_AXES,
) -> "Partitioner":
    """Makes the partitioner that trains a run: a mesh of all devices, `pmap`, or one device.

    Args:
      config: says `parallel`, and for a mesh its shape.
      devices: the devices to use. None uses all devices of all hosts for a mesh, otherwise all local devices.
        One device is the first of them.
      axes: names of the axes of parameters, see `tfm.devices.mesh.record_axes`.

    Raises:
      UserError: if there are several hosts without a mesh, or the devices do not divide into the mesh.
    """
    if config.parallel == "mesh":
        return Partitioner(devices or jax.devices(), config.mesh_fsdp, config.mesh_tensor, axes)
    if jax.process_count() > 1:
        raise UserError(f"Several hosts need training.parallel 'mesh', got {config.parallel!r}.")
    devices = devices or jax.local_devices()
    return Partitioner(devices[:1]) if config.parallel == "jit" else PmapPartitioner(devices)


def make_evaluation_partitioner(
    config: TrainingConfig, init: Callable[[jax.Array], Variables]
) -> "Partitioner":
    """Makes the partitioner that evaluates a run on the devices at hand.

    These devices may differ from the devices that trained the run. If its mesh does not fit them, the largest
    divisors of `mesh_fsdp` and `mesh_tensor` that fit replace both, and the function logs this.

    Args:
      config: config of the training.
      init: see `Task.init`. It is traced only if several devices divide the parameters.
    """
    is_single = config.parallel == "jit" and jax.process_count() == 1
    devices = jax.local_devices()[:1] if is_single else jax.devices()
    tensor = math.gcd(config.mesh_tensor, len(devices) // jax.process_count())
    fsdp = math.gcd(config.mesh_fsdp, len(devices) // tensor)
    if (fsdp, tensor) != (config.mesh_fsdp, config.mesh_tensor):
        log.info(
            "Computing on %s device(s) as fsdp %s x tensor %s, because they do not divide into the run's "
            "training.mesh_fsdp %s x mesh_tensor %s",
            *(len(devices), fsdp, tensor, config.mesh_fsdp, config.mesh_tensor),
        )
    axes = record_axes(init, jax.random.key(0))[1] if fsdp * tensor > 1 else NO_AXES
    return Partitioner(devices, fsdp, tensor, axes)


class Partitioner:
    """Places arrays on a mesh of one or more devices, and adds up what the devices compute.

    The rows of a batch are divided over the axes "data" and "fsdp". Parameters, and optimizer state with
    them, are divided over "fsdp" and "tensor" by the names of their axes.

    Attributes:
      mesh: the devices, as (data, fsdp, tensor).
      devices: number of devices.
      row_shards: number of parts into which the rows of a batch are divided.
      parameter_shards: number of parts into which parameters are divided.

    Raises:
      UserError: if the devices do not divide into the mesh, or several hosts would share rows.
    """

    def __init__(
        self,
        devices: Sequence[jax.Device],
        fsdp: int = 1,
        tensor: int = 1,
        axes: Mapping[str, Axes] = NO_AXES,
    ):
        if len(devices) % (fsdp * tensor):
            raise UserError(
                f"{len(devices)} devices do not divide into training.mesh_fsdp {fsdp} x mesh_tensor {tensor}."
            )
        hosts = jax.process_count()
        if len(devices) // tensor % hosts:
            possible = [n for n in range(1, tensor) if tensor % n == 0 and len(devices) // n % hosts == 0]
            raise UserError(
                f"training.mesh_tensor {tensor} does not divide the {len(devices) // hosts} devices of each "
                f"host. Each host reads separate rows, so lower training.mesh_tensor to {max(possible)}."
            )
        self.mesh = make_mesh(devices, fsdp, tensor)
        self.devices = len(devices)
        self.row_shards = len(devices) // tensor
        self.parameter_shards = fsdp * tensor
        self._axes = axes
        self._rows = NamedSharding(self.mesh, PartitionSpec(ROW_AXES))
        self._everywhere = NamedSharding(self.mesh, PartitionSpec())

    @property
    def host_shards(self) -> int:
        """Number of parts into which the rows of one host are divided."""
        return self.row_shards // jax.process_count()

    def sharding(self, tree: Any) -> Any:
        """Returns the tree of `NamedSharding`s of variables, optimizer state, or a whole train state."""
        return shard_parameters(tree, self.mesh, self._axes)

    def device_bytes(self, tree: Any) -> int:
        """Returns the bytes of a tree of shapes on each device."""
        return count_device_bytes(jax.tree.leaves(Partitioner.like(self, tree)))

    def like(self, tree: Any) -> Any:
        """Returns shapes with the placement in which a checkpoint is restored."""
        return jax.tree.map(
            lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), tree, self.sharding(tree)
        )

    def place(self, tree: Any) -> Any:
        """Places arrays that every host has completely, or that all devices divide in another way."""
        if jax.process_count() == 1:
            return jax.device_put(tree, self.sharding(tree))

        def place(x, where):
            if not getattr(x, "is_fully_addressable", True):
                return jax.device_put(x, where)
            whole = np.asarray(x)
            return jax.make_array_from_callback(whole.shape, where, lambda index: whole[index])

        return jax.tree.map(place, tree, self.sharding(tree))

    def place_batch(self, batch: Any) -> Any:
        """Places the rows of this host, padded with rows of zeros to a multiple of its parts."""
        return {
            name: jax.make_array_from_process_local_data(self._rows, pad_rows(x, self.host_shards))
            for name, x in batch.items()
        }

    def shapes(self, state: Any, batch: Any, constants: Any = None) -> tuple[Any, Any, Any]:
        """Returns the shapes of the arguments of a step as they are placed, to compile without allocating.

        Args:
          state: arrays or shapes of the train state.
          batch: arrays or shapes of the rows of one host. All hosts have the same number of rows.
          constants: arrays or shapes of the constants of the task.
        """

        def place(x):
            rows = jax.process_count() * (len(x) + -len(x) % self.host_shards)
            return jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype, sharding=self._rows)

        return self.like(state), {name: place(x) for name, x in batch.items()}, self.like(constants)

    def compile(self, function: Callable, state: Any, constants: Any = None, *, is_step: bool = True) -> Any:
        """Returns the compiled function of (placed state, placed batch, placed constants).

        Args:
          function: a train step, see `tfm.training.step.make_train_step`, or a function of its arguments.
          state, constants: arrays or shapes of the arguments.
          is_step: whether the function returns (state, metrics). It then reuses (donates) the memory of the
            state.
        """
        where = self.sharding(state)
        options: dict[str, Any] = {}
        if is_step:
            options = {"out_shardings": (where, self._everywhere), "donate_argnums": 0}
        return jax.jit(
            functools.partial(function, over_rows=self.over_rows),
            in_shardings=(where, self._rows, self.sharding(constants)),
            **options,
        )

    def over_rows(self, function: Callable) -> Callable:
        """Turns a function of the rows of one device into a function of all rows.

        Args:
          function: `tfm.training.step.sum_gradients` of (trained, fixed, model_state, batch, context).

        Returns:
          A function with the same arguments that returns (`Sums` of all rows, the model state of all).

        The compiler alone would add each gradient where it is made: in the compute dtype, inside the loop
        over layers, and once for each use of a table. Here each device computes all gradients of its rows,
        and one sum in float32 follows. Parameters that are divided over "fsdp" are gathered when they are
        used, see `tfm.devices.shards`. The axis "tensor" stays with the compiler.
        """
        if self.row_shards == 1:
            return lambda *arguments: function(*arguments)[:2]

        def sum_over_rows(trained, fixed, model_state, batch, context):
            trees = [trained, fixed, model_state, context.constants]
            specs = [self._row_specs(tree) for tree in trees]
            parameter_specs = merge_trees(*specs[:2])

            def gather(params):
                return gather_by_layer(jax.tree.map(_as_shard, params, parameter_specs))

            def on_device(trees, batch, step, rng):
                model_state, constants = jax.tree.map(_gather, trees[2:], specs[2:])
                inside = context.replace(step=step, rng=rng, constants=constants, row_axes=ROW_AXES)
                sums, new_state, present = function(*trees[:2], model_state, batch, inside, gather=gather)
                gradients = jax.tree.map(_sum_gradient, sums.gradients, specs[0])
                terms, metrics = jax.lax.psum((sums.terms, sums.metrics), ROW_AXES)
                state = combine_state(new_state, model_state, present, ROW_AXES)
                return Sums(gradients, terms, metrics), jax.tree.map(_keep_shard, state, specs[2])

            everywhere = PartitionSpec()
            return self.map_rows(
                on_device,
                in_specs=(specs, PartitionSpec(ROW_AXES), everywhere, everywhere),
                out_specs=(Sums(specs[0], everywhere, everywhere), specs[2]),
            )(trees, batch, context.step, context.rng)

        return sum_over_rows

    def map_rows(self, function: Callable, in_specs: Any, out_specs: Any) -> Callable:
        """Maps a function over the row shards of the mesh; see `jax.shard_map`."""
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            # The axis "tensor" stays with the compiler, except where it divides nothing.
            axis_names=set(ROW_AXES) if self.mesh.shape["tensor"] > 1 else set(MESH_AXES),
            check_vma=False,  # otherwise JAX adds gradients of shared values wherever they are used
        )

    def fetch(self, tree: Any) -> Any:
        """Returns one copy of the state or the metrics that a step returned, as they are saved and read."""
        return tree

    def fetch_variables(self, variables: Any) -> Any:
        """Returns fetched variables for an evaluation on all devices, see `tfm.devices.mesh.place_rows`."""
        return variables if self.devices > 1 else jax.tree.map(lambda x: x.addressable_data(0), variables)

    def _row_specs(self, tree: Any) -> Any:
        """Returns the `PartitionSpec`s of a tree over the axes of rows."""
        return jax.tree.map(lambda where: _keep_axes(where.spec, ROW_AXES), self.sharding(tree))


class PmapPartitioner(Partitioner):
    """Runs under `jax.pmap`, where each local device has all parameters."""

    def __init__(self, devices: Sequence[jax.Device]):
        super().__init__(devices)
        self._stacked = NamedSharding(Mesh(np.asarray(devices), (PMAP_AXIS,)), PartitionSpec(PMAP_AXIS))

    def like(self, tree: Any) -> Any:
        """Returns the tree: a saved state has no axis of devices."""
        return tree

    def place(self, tree: Any) -> Any:
        """Places a copy on each device, on a new first axis."""
        return jax.device_put(_stack(tree, self.devices), self._stacked)

    def place_batch(self, batch: Any) -> Any:
        """Divides the rows over the devices, on a new first axis."""
        split = {
            name: pad_rows(x, self.devices).reshape(self.devices, -1, *x.shape[1:])
            for name, x in batch.items()
        }
        return jax.device_put(split, self._stacked)

    def shapes(self, state: Any, batch: Any, constants: Any = None) -> tuple[Any, Any, Any]:
        """Returns the shapes of the arguments of a step as they are placed, to compile without allocating."""

        def stack(x, shape):
            return jax.ShapeDtypeStruct((self.devices, *shape), x.dtype, sharding=self._stacked)

        split = {name: stack(x, (-(-len(x) // self.devices), *x.shape[1:])) for name, x in batch.items()}
        state, constants = jax.tree.map(lambda x: stack(x, x.shape), (state, constants))
        return state, split, constants

    def compile(self, function: Callable, state: Any, constants: Any = None, *, is_step: bool = True) -> Any:
        """Returns the compiled function of (placed state, placed batch, placed constants)."""
        del state, constants
        function = functools.partial(function, over_rows=self.over_rows)
        devices, donated = list(self.mesh.devices.flat), 0 if is_step else ()
        return jax.pmap(function, PMAP_AXIS, devices=devices, donate_argnums=donated)

    def over_rows(self, function: Callable) -> Callable:
        """Turns a function of the rows of one device into a function of all rows."""

        def sum_over_rows(trained, fixed, model_state, batch, context):
            inside = context.replace(row_axes=(PMAP_AXIS,))
            sums, state, present = function(trained, fixed, model_state, batch, inside)
            return jax.lax.psum(sums, PMAP_AXIS), combine_state(state, model_state, present, (PMAP_AXIS,))

        return sum_over_rows

    def fetch(self, tree: Any) -> Any:
        """Returns the copy of the first device."""
        return _unstack(jax.tree.map(lambda x: x.addressable_data(0), tree))

    def fetch_variables(self, variables: Any) -> Any:
        """Returns a copy on each device of fetched variables, for an evaluation on all devices."""
        return super().place(variables) if self.devices > 1 else variables


def combine_state(new: Any, old: Any, present: jax.Array, axes: tuple[str, ...]) -> Any:
    """Combines the model states of all devices.

    Args:
      new, old: trees of the state after and before the step on this device.
      present: whether any row of this device counts.
      axes: the axes over which the rows are divided.

    Returns:
      The mean of floats over the devices with rows that count, and the largest of integers over all devices,
      where a device without such rows has the old state. If no device has such rows, the old state.
    """
    if not new:
        return new
    total = jax.lax.psum(present.astype(jnp.float32), axes)

    def combine(new, old):
        if not jnp.issubdtype(new.dtype, jnp.floating):
            return jax.lax.pmax(jnp.where(present, new, old), axes)
        mean = jax.lax.psum(jnp.where(present, new, jnp.zeros_like(new)), axes) / jnp.maximum(total, 1)
        return jnp.where(total > 0, mean, old).astype(new.dtype)

    return jax.tree.map(combine, new, old)


@functools.partial(jax.jit, static_argnums=1)
def _stack(tree: Any, count: int) -> Any:
    """Repeats each array on a new first axis. One program for all arrays, as is `_unstack`."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *jnp.shape(x))), tree)


@jax.jit
def _unstack(tree: Any) -> Any:
    """Returns the first element of each array."""
    return jax.tree.map(lambda x: x[0], tree)


def _gather(x: jax.Array, spec: PartitionSpec) -> jax.Array:
    """Returns the whole array of a shard."""
    return x if "fsdp" not in spec else jax.lax.all_gather(x, "fsdp", axis=spec.index("fsdp"), tiled=True)


def _as_shard(x: jax.Array, spec: PartitionSpec) -> jax.Array | Shard:
    """Returns the `Shard` of a divided parameter, for `gather_by_layer`."""
    is_divided = SHARD_AXIS in spec and jax.lax.axis_size(SHARD_AXIS) > 1
    return Shard(x, spec.index(SHARD_AXIS)) if is_divided else x


def _sum_gradient(gradient: jax.Array, spec: PartitionSpec) -> jax.Array:
    """Adds a gradient over devices. The gradient of a gathered parameter is a sum over "fsdp" already."""
    if SHARD_AXIS not in spec:
        return jax.lax.psum(gradient, ROW_AXES)
    return jax.lax.psum(gradient, "data") if jax.lax.axis_size("data") > 1 else gradient


def _keep_shard(x: jax.Array, spec: PartitionSpec) -> jax.Array:
    """Returns the shard of a whole array on this device."""
    if "fsdp" not in spec:
        return x
    axis = spec.index("fsdp")
    length = x.shape[axis] // jax.lax.axis_size("fsdp")
    return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index("fsdp") * length, length, axis)


def _keep_axes(spec: PartitionSpec, axes: Sequence[str]) -> PartitionSpec:
    """Returns a `PartitionSpec` without the mesh axes that are not in `axes`. Each entry names one axis."""
    return PartitionSpec(*(axis if axis in axes else None for axis in spec))
