"""Dropout whose mask does not depend on devices.

The mask is a hash of a random key and of each element's index. It is the same on a CPU, on an accelerator and
on any number of devices, however the array is laid out. XLA computes the hash inside the operation that uses
it. On a CPU, `jax.random.bits` would take a good part of a training step.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from tfm.devices.rows import shard_index

STEPS = 2**16  # the number of values of the hash, and of the possible rates


def dropout(rng: jax.Array | None, x: jax.Array, rate: float) -> jax.Array:
    """Zeroes each element of x with probability `rate` and scales the rest so that the mean stays the same.

    Args:
      rng: a JAX random key. It is not used if `rate` is 0.
      x: an array of any shape. Inside `jax.shard_map` or `jax.pmap` over the axes of `tfm.devices.rows`, the
        rows [rows, ...] of this device, all devices having the same number of rows and the same key.
      rate: at least 0 and below 1. It is rounded to a multiple of 2 ** -16, and the scale fits the result.

    Returns:
      An array with the shape and dtype of x. It is scaled in float32 at least and rounded once.

    Raises:
      ValueError: if the rate is out of range, or if it is above 0 without a key.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"the rate of dropout must be at least 0 and below 1, got {rate}")
    if rate == 0:
        return x
    if rng is None:
        raise ValueError(f"dropout at a rate above 0 needs a random key, got none for rate {rate}")
    threshold = min(round(rate * STEPS), STEPS - 1)
    keep = hash_indices(rng, x.shape) >= threshold
    # A bfloat16 has 8 bits of precision, so rounding the factor itself (10/9, say) would change the mean.
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    scaled = (wide * (STEPS / (STEPS - threshold))).astype(x.dtype)
    return jnp.where(keep, scaled, jnp.zeros((), x.dtype))


def hash_indices(rng: jax.Array, shape: Sequence[int]) -> jax.Array:
    """Hashes the index of each element with a key to values that are uniform over [0, `STEPS`).

    Each index passes two rounds of the 32-bit finalizer "lowbias32", each after one word of the key. This is
    good enough to drop activations, but it is no certified generator. Values repeat after 2 ** 32 elements.

    Args:
      rng: a JAX random key.
      shape: the shape of the array, or of this device's rows as in `dropout`.

    Returns:
      uint32 [*shape].
    """
    low, high = jax.random.bits(rng, (2,), jnp.uint32)
    return _finalize(_finalize(_indices(shape) ^ low) ^ high) >> 16


def _indices(shape: Sequence[int]) -> jax.Array:
    """Returns the row-major index of each element in the array of all devices, modulo 2 ** 32.

    The index is a sum over axes, so that each device computes only the indices of its elements.
    """
    shard = shard_index()
    device = jnp.uint32(0) if shard is None else shard.astype(jnp.uint32)
    strides = [_as_uint32(math.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    indices = (jax.lax.broadcasted_iota(jnp.uint32, shape, i) * stride for i, stride in enumerate(strides))
    return sum(indices, start=device * _as_uint32(math.prod(shape)))


def _as_uint32(number: int) -> jax.Array:
    """Returns a number modulo 2 ** 32."""
    return jnp.uint32(number % 2**32)


def _finalize(x: jax.Array) -> jax.Array:
    """Returns the hash lowbias32 of uint32 values."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
