"""The largest logits, computed by operations that a CPU can vectorize."""

import jax
import jax.numpy as jnp

from tfm.devices import backend

MAX_BLOCK_SIZE = 256


def largest(x: jax.Array) -> jax.Array:
    """Returns the index of the first maximum over the last axis: [..., V] -> int32 [...].

    If a value is NaN, the result can be any index. Otherwise this equals `argmax`. It is faster on a CPU,
    because XLA vectorizes a maximum and a comparison, but not `argmax`.
    """
    index = jax.lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)
    # If the maximum is NaN, it equals no value, and every element becomes the last index, V - 1.
    return jnp.where(x == x.max(-1, keepdims=True), index, x.shape[-1] - 1).min(-1)


def top_k(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Computes `jax.lax.top_k` over the last axis. On a CPU, it uses `two_stage_top_k`.

    Args:
      x: [..., V].
      k: Number of values to return, at most V.

    Returns:
      Values and indices, both [..., k]. The largest value is the first. Among equal values, the lowest index
      comes first.
    """
    return two_stage_top_k(x, k) if backend.is_cpu() else jax.lax.top_k(x, k)


def two_stage_top_k(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Computes `jax.lax.top_k` in two stages: select the k blocks with the largest maxima, then k values.

    The k largest values are always in these k blocks. On a CPU, computing a maximum is several times faster
    than selecting the k largest values. A block size near sqrt(V / k) leaves the fewest candidates for both
    selections. If V has no suitable divisor, this calls `jax.lax.top_k` directly.

    Args:
      x, k: See `top_k`.

    Returns:
      See `top_k`. The order of equal values is the same.
    """
    length = x.shape[-1]
    sizes = [size for size in range(1, MAX_BLOCK_SIZE + 1) if length % size == 0]
    block = min(sizes, key=lambda size: length // size + k * size)
    if 3 * (length // block + k * block) > length:
        return jax.lax.top_k(x, k)
    blocks = x.reshape(*x.shape[:-1], length // block, block)
    _, selected = jax.lax.top_k(blocks.max(-1), k)
    selected = jnp.sort(selected)  # Among equal values, the lowest index must still come first.
    candidates = jnp.take_along_axis(blocks, selected[..., None], axis=-2)
    values, indices = jax.lax.top_k(candidates.reshape(*x.shape[:-1], k * block), k)
    return values, jnp.take_along_axis(selected, indices // block, axis=-1) * block + indices % block
