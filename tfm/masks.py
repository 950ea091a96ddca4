"""Attention masks (sections 3.1 and 3.2.3): boolean, True where a query may attend to a key.

Masks are made outside the model from positions and validity and combined with logical and. All have the
shape [..., 1, L, M] (or broadcast to it), where the 1 is the head axis. For two queries and three keys, whose
tokens are np.array([5, 7, 0]):

    padding_mask(tokens)     causal_mask(np.arange(2), np.arange(3))     combine_masks(both)
        1 1 0                    1 0 0                                       1 0 0
                                 1 1 0                                       1 1 0
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Int

from tfm.array_types import Array


def padding_mask(tokens: Int[Array, "*batch M"], pad_id: int = 0) -> Bool[jax.Array, "*batch 1 1 M"]:
    """[B, M] tokens -> bool [B, 1, 1, M]: every query may attend to the keys that are not padding."""
    return jnp.asarray(tokens != pad_id)[..., None, None, :]


def causal_mask(
    query_positions: Int[Array, "*#batch L"], key_positions: Int[Array, "*#batch M"]
) -> Bool[jax.Array, "*#batch 1 L M"]:
    """[.., L], [.., M] -> bool [.., 1, L, M]: a query attends to keys at its own position and before it.

    Positions are absolute, so that one query at position 7 works against a cache of positions 0 to 31.
    """
    return jnp.asarray(query_positions[..., :, None] >= key_positions[..., None, :])[..., None, :, :]


def segment_mask(
    query_segments: Int[Array, "*#batch L"], key_segments: Int[Array, "*#batch M"]
) -> Bool[jax.Array, "*#batch 1 L M"]:
    """[.., L], [.., M] -> bool [.., 1, L, M]: only within one segment of a packed row.

    Segments count from 1; 0 is padding, which neither attends nor is attended to.
    """
    same = query_segments[..., :, None] == key_segments[..., None, :]
    valid = key_segments[..., None, :] != 0
    return jnp.asarray(same & valid)[..., None, :, :]


def local_mask(
    query_positions: Int[Array, "*#batch L"], key_positions: Int[Array, "*#batch M"], window: int
) -> Bool[jax.Array, "*#batch 1 L M"]:
    """[.., L], [.., M] -> bool [.., 1, L, M]: keys at most (window - 1) / 2 positions before or behind.

    The restricted self-attention of section 4, whose neighbourhood of size r is the window, centred on the
    query; an even window has one position more before the query than behind it.

    Raises:
      ValueError: the window is not positive: no query would attend to anything.
    """
    if window < 1:
        raise ValueError(f"window must be at least 1, the query's own position, got {window}")
    ahead = key_positions[..., None, :] - query_positions[..., :, None]
    return jnp.asarray((ahead >= -(window // 2)) & (ahead <= (window - 1) // 2))[..., None, :, :]


def ends_mask(mask: Bool[Array, "*batch M"]) -> Bool[jax.Array, "*batch M"]:
    """The first and the last True of each row of a mask alone: of all that a query sees, both ends.

    Of a packed row that is each segment's first and last position; under a causal mask a query's own is last.
    """
    count = jnp.cumsum(mask, axis=-1)
    return jnp.logical_and(mask, (count == 1) | (count == count[..., -1:]))


def combine_masks(*masks: Bool[Array, "..."] | None) -> Bool[jax.Array, "..."] | None:
    """Logical and of broadcastable masks. None is neutral; nothing but None gives None.

    Raises:
      ValueError: a mask is not bool. Numbers, 0 and -inf for instance, would be taken for their opposite.
    """
    present = [jnp.asarray(mask) for mask in masks if mask is not None]
    for mask in present:
        if mask.dtype != jnp.bool_:
            raise ValueError(f"masks must be bool, True where the query may attend, got {mask.dtype}")
    return functools.reduce(jnp.logical_and, present) if present else None
