"""Attention masks (sections 3.1 and 3.2.3): boolean arrays, True where a query may attend to a key.

Masks are computed outside the model and combined with a logical and. A mask has the shape [..., 1, L, M] for
L queries and M keys, where the 1 is the axis of the heads. For two queries and three keys with the tokens
np.array([5, 7, 0]):

    padding_mask(tokens)     causal_mask(np.arange(2), np.arange(3))     combine_masks of both
        1 1 0                    1 0 0                                       1 0 0
                                 1 1 0                                       1 1 0
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Integer

from tfm.array_types import Array, check_arrays
from tfm.positions import relative_distance

QueryNumbers = Integer[Array, "*#batch L"]
KeyNumbers = Integer[Array, "*#batch M"]
Mask = Bool[jax.Array, "*#batch 1 L M"]


@check_arrays
def padding_mask(tokens: Integer[Array, "*batch M"], pad_id: int = 0) -> Bool[jax.Array, "*batch 1 1 M"]:
    """Returns the mask [..., 1, 1, M] that hides padding: keys whose token is `pad_id`."""
    # Unsigned tokens would turn a pad_id of -1 into their largest value.
    return (jnp.asarray(tokens, jnp.int32) != pad_id)[..., None, None, :]


@check_arrays
def causal_mask(query_positions: QueryNumbers, key_positions: KeyNumbers) -> Mask:
    """Returns the mask [..., 1, L, M] that hides later keys: a query sees its own position and earlier ones.

    Positions are absolute, so one query at position 7 can attend to a cache of the positions 0 to 31.
    """
    return (relative_distance(query_positions, key_positions) <= 0)[..., None, :, :]


@check_arrays
def segment_mask(query_segments: QueryNumbers, key_segments: KeyNumbers) -> Mask:
    """Returns the mask [..., 1, L, M] that separates the sentences of a packed row.

    Segments count from 1. Segment 0 is padding: it attends to nothing, and nothing attends to it.
    """
    is_same = query_segments[..., :, None] == key_segments[..., None, :]
    is_token = key_segments[..., None, :] != 0
    return jnp.asarray(is_same & is_token)[..., None, :, :]


@check_arrays
def local_mask(query_positions: QueryNumbers, key_positions: KeyNumbers, window: int) -> Mask:
    """Returns the mask [..., 1, L, M] of a neighbourhood: the restricted self-attention of section 4.

    Args:
      query_positions: integers [..., L].
      key_positions: integers [..., M].
      window: number of visible positions, r in the paper. The query is in the centre. An even window has
        one more position before the query than after it.

    Raises:
      ValueError: if the window is below 1, because no query could attend to anything.
    """
    if window < 1:
        raise ValueError(f"Expected window to be at least 1 (only the query's own position), got {window}.")
    distance = relative_distance(query_positions, key_positions)
    return ((distance >= -(window // 2)) & (distance <= (window - 1) // 2))[..., None, :, :]


@check_arrays
def first_and_last_mask(mask: Bool[Array, "*batch M"]) -> Bool[jax.Array, "*batch M"]:
    """Returns a mask that keeps only the first and the last visible key of each query.

    In a packed row, these are the ends of the query's segment. In a causal mask, the last visible key is the
    query's own position.
    """
    count = jnp.cumsum(mask, axis=-1)
    return jnp.logical_and(mask, (count == 1) | (count == count[..., -1:]))


@check_arrays
def combine_masks(*masks: Bool[Array, "*#shape"] | None) -> Bool[jax.Array, "..."] | None:
    """Returns the logical and of masks. A key is visible if all masks show it; None shows everything.

    Raises:
      ValueError: if a mask does not fit the others, see `check_mask_axes`.
    """
    present = [jnp.asarray(mask) for mask in masks if mask is not None]
    for mask in present:
        check_mask_axes(mask, max(each.ndim for each in present))
    return functools.reduce(jnp.logical_and, present) if present else None


def check_mask_axes(mask: Bool[Array, "..."], axes: int) -> None:
    """Raises a ValueError if a mask without batch axes could be misread.

    Broadcasting would read a mask [B, L, M] as [H, L, M] if B equals H. Therefore a mask with fewer axes
    needs a first axis of size 1, as in the mask [1, L, M] of a causal mask for the whole batch.
    """
    if mask.ndim < axes and mask.shape[:1] != (1,):
        raise ValueError(
            f"Expected mask to have {axes} axes, [..., H, L, M], or the shape [1, L, M], got {mask.shape}. "
            "Insert the axis of the heads: mask[..., None, :, :]."
        )
