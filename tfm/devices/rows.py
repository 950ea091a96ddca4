"""The rows of a batch that a device has, for random numbers that depend on them."""

import contextlib
import contextvars
from collections.abc import Iterator

import jax

ROW_AXES = ("data", "fsdp")  # the axes of a mesh over which `jax.shard_map` divides the rows of a batch
PMAP_AXIS = "batch"  # the axis over which `jax.pmap` divides them
_shard: contextvars.ContextVar = contextvars.ContextVar("shard", default=None)


def make_device_key(rng: jax.Array) -> jax.Array:
    """Returns a different random key for each device's rows, for random numbers other than dropout.

    Inside `jax.shard_map` over `ROW_AXES` and `jax.pmap` over `PMAP_AXIS`, all devices have the same key and
    would draw the same numbers for their rows. Unlike dropout, the numbers drawn with the returned key depend
    on the number of devices. Elsewhere, this returns `rng`.
    """
    shard = shard_index()
    return rng if shard is None else jax.random.fold_in(rng, shard)


@contextlib.contextmanager
def rows_of_shard(shard: jax.Array | int | None) -> Iterator[None]:
    """Computes the random numbers inside as the device with these rows does, on one device without a mesh.

    Args:
      shard: index of the device among the devices with different rows; None if one device has all rows.
    """
    token = _shard.set(shard)
    try:
        yield
    finally:
        _shard.reset(token)


def shard_index() -> jax.Array | int | None:
    """Returns the index of the rows of this device, or None if all rows are on one device."""
    axes = _row_axes()
    return jax.lax.axis_index(axes) if axes else _shard.get()


def _row_axes() -> tuple[str, ...]:
    """Returns the names of the device axes that divide the rows here."""
    manual_axes = jax.sharding.get_abstract_mesh().manual_axes
    return tuple(axis for axis in (*ROW_AXES, PMAP_AXIS) if axis in manual_axes)
