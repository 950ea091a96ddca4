"""The neighbours of each position, as the input of a convolution. Shape letters as in `tfm.layers`."""

import jax
import jax.numpy as jnp


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
    return jnp.concatenate(parts, axis=-1)
