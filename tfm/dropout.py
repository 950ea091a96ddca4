"""Dropout, with random numbers that are cheap on a CPU."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from tfm import backend

ROW_AXES = ("data", "fsdp")  # of a mesh: `jax.shard_map` over them divides the rows, the first axis of x


def dropout(rng: jax.Array | None, x: jax.Array, rate: float) -> jax.Array:
    """Zeroes each element of `x` with probability `rate` and scales the rest so that the mean is kept.

    Args:
      rng: a JAX random key; not used when `rate` is 0.
      x: any shape; under `jax.shard_map` over `ROW_AXES` [rows, ...], this device's rows of an array of which
        it drops what one device would.
      rate: in [0, 1). Realized in steps of 2 ** -16, which the scaling takes into account exactly.

    Returns:
      The shape and dtype of `x`. The scaling is computed in float32 at least and rounded once.

    Raises:
      ValueError: a rate out of range, or no key for one above 0.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"the rate of dropout must be at least 0 and below 1, got {rate}")
    if rate == 0:
        return x
    if rng is None:
        raise ValueError(f"dropout at a rate above 0 needs a random key, got none for rate {rate}")
    threshold = min(round(rate * 2**16), 2**16 - 1)
    keep = random_bits16(rng, x.shape) >= threshold
    # A bfloat16 has 8 bits: the factor itself, 10/9 for instance, must not be rounded to one.
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    scaled = (wide * (2**16 / (2**16 - threshold))).astype(x.dtype)
    return jnp.where(keep, scaled, jnp.zeros((), x.dtype))


def random_bits16(rng: jax.Array, shape: Sequence[int]) -> jax.Array:
    """uint32 values uniform over [0, 2 ** 16): `hashed_bits16` on a CPU, `jax.random.bits` elsewhere.

    A run that moves to another kind of device therefore drops other elements. Where rows are divided, only
    the hash makes a device's part of all values by itself.
    """
    axes = _row_axes()
    if axes:
        return hashed_bits16(rng, shape, jax.lax.axis_index(axes).astype(jnp.uint32) * math.prod(shape))
    if backend.is_cpu():
        return hashed_bits16(rng, shape)
    return jax.random.bits(rng, shape, jnp.uint16).astype(jnp.uint32)


def make_device_key(rng: jax.Array) -> jax.Array:
    """A random key for each device's rows, for random numbers other than those of `dropout`.

    Under `jax.shard_map` over `ROW_AXES` all devices are given one key, with which each would draw the same
    for its rows: there, a key that differs between them; elsewhere `rng` itself. What is drawn so depends on
    the number of devices, unlike dropout.
    """
    axes = _row_axes()
    return jax.random.fold_in(rng, jax.lax.axis_index(axes)) if axes else rng


def _row_axes():
    """The axes of the mesh by which `jax.shard_map` divides the rows here; none outside of it."""
    return tuple(axis for axis in ROW_AXES if axis in jax.sharding.get_abstract_mesh().manual_axes)


def hashed_bits16(rng: jax.Array, shape: Sequence[int], first: jax.Array | int = 0) -> jax.Array:
    """uint32 values uniform over [0, 2 ** 16): a counter hashed with a key that `rng` gives.

    Threefry costs about 20 integer operations a word and cannot be fused into what uses it; on a CPU it takes
    a good part of a training step. This takes its key from threefry and hashes the element's index with it
    (two rounds of the 32-bit finalizer "lowbias32", keyed in between), which XLA fuses into the consumer.
    Good enough to drop activations; not for anything that needs a certified generator.

    Args:
      rng: a JAX random key.
      shape: of the values.
      first: uint32 index of the first value, for a part of a larger array.
    """
    low, high = jax.random.bits(rng, (2,), jnp.uint32)
    counter = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape) + jnp.uint32(first)
    return _finalize(_finalize(counter ^ low) ^ high) >> 16


def _finalize(x):
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
