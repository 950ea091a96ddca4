"""The neighbours of each position, as the input of a convolution. Shape letters as in `tfm.layers`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tfm.masks import AttentionMask

# Maps x [B, L, D] to the R vectors that each position sees, [B, L, R, D].
Gather = Callable[[jax.Array], jax.Array]


def gather_neighbours(x: jax.Array, segments: jax.Array, offsets: range) -> jax.Array:
    """Concatenates the neighbours of each position, so that a projection of the result is a convolution.

    A neighbour outside the row, in another segment or in padding is 0.

    Args:
      x: [B, L, D].
      segments: Number of the sentence that each position belongs to, int [B, L]. 0 is padding.
      offsets: Distances to the R neighbours in ascending order, such as range(-2, 1) for a causal kernel of
        width 3.

    Returns:
      [B, L, R * D].

    Examples:
      >>> x = jnp.array([[[1], [2], [3], [4]]])
      >>> gather_neighbours(x, jnp.array([[1, 1, 2, 2]]), range(-1, 1)).tolist()
      [[[0, 1], [1, 2], [0, 3], [3, 4]]]
    """
    return jnp.concatenate(_list_neighbours(x, segments, offsets), axis=-1)


def _list_neighbours(x: jax.Array, segments: jax.Array, offsets: range) -> list[jax.Array]:
    """Returns R arrays [B, L, D] with the neighbours at each offset, see `gather_neighbours`."""
    before, after = max(-offsets[0], 0), max(offsets[-1], 0)
    length = x.shape[1]
    padded = jnp.pad(x, ((0, 0), (before, after), (0, 0)))
    padded_segments = jnp.pad(segments, ((0, 0), (before, after)))
    parts = []
    for offset in offsets:
        start = before + offset
        is_same = padded_segments[:, start : start + length] == segments
        neighbour = padded[:, start : start + length]
        parts.append(jnp.where((is_same & (segments > 0))[..., None], neighbour, 0))
    return parts


def gather_by_mask(mask: Any, shape: tuple[int, ...], kernel: int) -> Gather:
    """Returns the function that collects the neighbours of each position for a convolution.

    With a causal mask, a position sees itself and the R - 1 positions before it. Otherwise, it is in the
    centre, and an even R has one more position before it than after it. A neighbour outside the row, in
    another segment or in padding is 0.

    Args:
      mask: The mask of self-attention, an `AttentionMask`. None means rows of one sentence without padding.
      shape: Shape of the array [B, L, D] whose neighbours are collected.
      kernel: Width of the kernel, R.

    Raises:
      ValueError: If the mask is an array, because causality cannot be read from it.
    """
    if mask is not None and not isinstance(mask, AttentionMask):
        raise ValueError(
            f"Expected the mask of a feed-forward network with kernel {kernel} to be an AttentionMask or "
            f"None, got a {type(mask).__name__}. Pass a tfm.masks.AttentionMask, or use kernel 1."
        )
    before = kernel - 1 if mask is not None and mask.causal else kernel // 2
    segments = None if mask is None else mask.key_segments
    segments = jnp.ones(shape[:2], jnp.int32) if segments is None else jnp.asarray(segments, jnp.int32)
    offsets = range(-before, kernel - before)
    return lambda x: jnp.stack(_list_neighbours(x, segments, offsets), axis=2)


def append_step(last: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Collects the neighbours of the next position of each hypothesis.

    Args:
      last: The R - 1 vectors before this position, [B, W, R - 1, D].
      x: [B, W, D].

    Returns:
      The R vectors that each hypothesis sees, [B, W, R, D], and the last R - 1 of them.
    """
    window = jnp.concatenate([last, x[:, :, None].astype(last.dtype)], axis=2)
    return window, window[:, :, 1:]


def append_prefix(last: jax.Array, x: jax.Array, lengths: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Collects the neighbours of more positions of a prefix that all hypotheses of a row share.

    Args:
      last: The R - 1 vectors before these positions, [B, W, R - 1, D], equal for all hypotheses of a row.
      x: [B, P', D], padded at the end.
      lengths: Number of positions of x that are no padding, int [B].

    Returns:
      The R vectors that each position sees, [B, P', R, D], and the last R - 1 vectors before the padding,
      [B, W, R - 1, D].
    """
    before, length = last.shape[2], x.shape[1]
    row = jnp.concatenate([last[:, 0], x.astype(last.dtype)], axis=1)
    windows = jnp.stack([row[:, start : start + length] for start in range(before + 1)], axis=2)
    newest = lengths[:, None] + jnp.arange(before)
    newest_vectors = jnp.take_along_axis(row, newest[..., None], axis=1)
    return windows, jnp.broadcast_to(newest_vectors[:, None], last.shape)
