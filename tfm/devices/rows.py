"""The rows of a batch that a device or a host has."""

import jax

ROW_AXES = ("data", "fsdp")  # the axes of a mesh over which `jax.shard_map` divides the rows of a batch
PMAP_AXIS = "batch"  # the axis over which `jax.pmap` divides the rows of a batch


def make_device_key(rng: jax.Array) -> jax.Array:
    """Returns a different random key for each device's rows, for random numbers other than dropout.

    Inside `jax.shard_map` over `ROW_AXES` and `jax.pmap` over `PMAP_AXIS`, all devices have the same key and
    would draw the same numbers for their rows. Unlike dropout, the numbers drawn with the returned key depend
    on the number of devices. Elsewhere, this returns `rng`.
    """
    shard = shard_index()
    return rng if shard is None else jax.random.fold_in(rng, shard)


def shard_index() -> jax.Array | None:
    """Returns the index of the rows of this device, or None if all rows are on one device."""
    manual_axes = jax.sharding.get_abstract_mesh().manual_axes
    axes = tuple(axis for axis in (*ROW_AXES, PMAP_AXIS) if axis in manual_axes)
    return jax.lax.axis_index(axes) if axes else None


def this_host() -> dict[str, int]:
    """Returns the index of this host and the number of hosts, as `GeneratedBatches` expects them."""
    return {"host_index": jax.process_index(), "host_count": jax.process_count()}
