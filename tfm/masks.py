"""Attention masks (sections 3.1 and 3.2.3): boolean, True where a query may attend to a key.

Masks are made outside the model from positions and validity and combined with logical and. All have the
shape [..., 1, L, M] (or broadcast to it), where the 1 is the head axis. For two queries and three keys:

    padding_mask([5, 7, 0])        causal_mask([0, 1], [0, 1, 2])     combine_masks(both)
        1 1 0                          1 0 0                              1 0 0
                                       1 1 0                              1 1 0
"""

import functools

import jax
import jax.numpy as jnp


def padding_mask(tokens: jax.Array, pad_id: int = 0) -> jax.Array:
    """[B, M] tokens -> bool [B, 1, 1, M]: every query may attend to the keys that are not padding."""
    return (tokens != pad_id)[..., None, None, :]


def causal_mask(query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
    """[.., L], [.., M] -> bool [.., 1, L, M]: a position attends to itself and to what came before.

    Positions are absolute, so that one query at position 7 works against a cache of positions 0 to 31.
    """
    return (query_positions[..., :, None] >= key_positions[..., None, :])[..., None, :, :]


def segment_mask(query_segments: jax.Array, key_segments: jax.Array) -> jax.Array:
    """[.., L], [.., M] -> bool [.., 1, L, M]: only within one sentence of a packed row.

    Segments count from 1; 0 is padding, which neither attends nor is attended to.
    """
    same = query_segments[..., :, None] == key_segments[..., None, :]
    valid = key_segments[..., None, :] != 0
    return (same & valid)[..., None, :, :]


def combine_masks(*masks: jax.Array | None) -> jax.Array | None:
    """Logical and of broadcastable masks. None is neutral; nothing but None gives None."""
    given = [mask for mask in masks if mask is not None]
    if not given:
        return None
    return functools.reduce(jnp.logical_and, given)
