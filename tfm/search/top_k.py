"""The k largest logits: `jax.lax.top_k`, on a CPU in two stages."""

import jax
import jax.numpy as jnp

from tfm import backend

MAX_BLOCK_SIZE = 256


def top_k(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """`jax.lax.top_k` over the last axis; see `two_stage_top_k` for CPUs.

    Args:
      x: [..., V].
      k: at most V.

    Returns:
      Values and indices, both [..., k]: the largest first, of equal ones the one of the lowest index first.
    """
    return two_stage_top_k(x, k) if backend.is_cpu() else jax.lax.top_k(x, k)


def two_stage_top_k(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """`jax.lax.top_k` that selects blocks by their maximum first, and then from these blocks alone.

    A plain maximum is several times faster than a selection on a CPU. Where the length of the last axis has
    no divisor that makes this worth while, it is `jax.lax.top_k`.

    Args:
      x, k: as in `top_k`.

    Returns:
      As `top_k`, ties included.
    """
    length = x.shape[-1]
    block = max(size for size in range(1, MAX_BLOCK_SIZE + 1) if length % size == 0)
    if block * k * 4 > length:
        return jax.lax.top_k(x, k)
    blocks = x.reshape(*x.shape[:-1], length // block, block)
    _, selected = jax.lax.top_k(blocks.max(-1), k)
    selected = jnp.sort(selected)  # so that the lowest index still comes first among equal values
    candidates = jnp.take_along_axis(blocks, selected[..., None], axis=-2)
    values, indices = jax.lax.top_k(candidates.reshape(*x.shape[:-1], k * block), k)
    return values, jnp.take_along_axis(selected, indices // block, axis=-1) * block + indices % block
