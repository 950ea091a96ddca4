"""Attention masks (sections 3.1 and 3.2.3): boolean arrays, True where a query may attend to a key.

Masks are computed outside the model and combined with a logical and. A mask has the shape [..., 1, L, M] for
L queries and M keys, where the 1 is the axis of the heads. For two queries and three keys with the tokens
np.array([5, 7, 0]):

    padding_mask(tokens)     causal_mask(np.arange(2), np.arange(3))     combine_masks of both
        1 1 0                    1 0 0                                       1 0 0
                                 1 1 0                                       1 1 0

An `AttentionMask` describes such a mask, so that a kernel can leave out hidden keys without an array.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Integer

from tfm.array_types import Array, check_arrays
from tfm.positions import relative_distance

PAD_ID = 0  # the token of padding
QueryNumbers = Integer[Array, "*#batch L"]
KeyNumbers = Integer[Array, "*#batch M"]
Mask = Bool[jax.Array, "*#batch 1 L M"]


@check_arrays
def padding_mask(tokens: Integer[Array, "*batch M"], pad_id: int = PAD_ID) -> Bool[jax.Array, "*batch 1 1 M"]:
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
    """Returns the logical and of masks. A key is visible if all masks show it.

    None shows everything. The result is None if all masks are None.

    Raises:
      ValueError: if a mask does not fit the others, see `check_mask_axes`.
    """
    present = [jnp.asarray(mask) for mask in masks if mask is not None]
    for mask in present:
        check_mask_axes(mask, max(array.ndim for array in present))
    return functools.reduce(jnp.logical_and, present) if present else None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AttentionMask:
    """The form of a mask [B, 1, L, M] whose positions are 0, 1, 2, ... in each row.

    Attributes:
      query_segments, key_segments: [B, L] and [B, M]. Integers are numbers as in `segment_mask`. Booleans are
        True for tokens, in rows with one sentence each and padding only at the end. None means no padding.
        Queries have segments only if keys have them, too.
      causal: whether a query sees only its own position and earlier ones.
      window: number of visible positions around a query, see `local_mask`. None means all positions.
    """

    query_segments: Any = None
    key_segments: Any = None
    causal: bool = dataclasses.field(default=False, metadata={"static": True})
    window: int | None = dataclasses.field(default=None, metadata={"static": True})

    @property
    def is_packed(self) -> bool:
        """Whether a row may contain several sentences."""
        segments = (self.query_segments, self.key_segments)
        return any(array is not None and array.dtype != bool for array in segments)

    @property
    def reach(self) -> tuple[int | None, int | None]:
        """How many positions before and after its own a query sees. None means all."""
        before, after = (None, None) if self.window is None else (self.window // 2, (self.window - 1) // 2)
        return before, 0 if self.causal else after

    def to_array(self, query_positions: Array, key_positions: Array) -> jax.Array | None:
        """Returns booleans [B or 1, 1, L or 1, M] for query positions [L] and key positions [M].

        Returns None for `AttentionMask()`, which hides nothing.
        """
        mask = causal_mask(query_positions, key_positions)[None] if self.causal else None
        if self.window is not None:
            mask = combine_masks(mask, local_mask(query_positions, key_positions, self.window)[None])
        if self.key_segments is None:
            return mask
        key_segments = jnp.asarray(self.key_segments, jnp.int32)
        if self.query_segments is None:
            return combine_masks(mask, padding_mask(key_segments))
        return combine_masks(mask, segment_mask(jnp.asarray(self.query_segments, jnp.int32), key_segments))


def mask_to_array(mask: Any, queries: int, keys: int) -> Any:
    """Returns a mask in any form as booleans [..., H or 1, L or 1, M] for L queries and M keys.

    Arrays and None are returned unchanged. `AttentionMask()`, which hides nothing, becomes None.
    """
    if isinstance(mask, AttentionMask):
        return mask.to_array(jnp.arange(queries), jnp.arange(keys))
    return mask


def restrict_to_window(mask: Any, positions: Array, key_positions: Array, *, window: int) -> Any:
    """Returns a mask that also hides all keys outside a window around the position of each query.

    An `AttentionMask` stays an `AttentionMask`, with the smaller of both windows. Its positions are 0, 1, 2,
    and so on, so `positions` [..., L] and `key_positions` [..., M] are not used. Booleans and None become
    booleans, see `local_mask`.
    """
    if isinstance(mask, AttentionMask):
        narrower = window if mask.window is None else min(window, mask.window)
        return dataclasses.replace(mask, window=narrower)
    return combine_masks(mask, local_mask(positions, key_positions, window))


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
