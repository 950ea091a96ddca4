"""Positions that act inside self-attention: rotary encoding, and relative and linear biases.

`MultiHeadAttention` receives them in its fields `encode_positions` and `position_bias`.
Shape letters as in `tfm.layers`.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers.dense import KERNEL_INIT
from tfm.positions import LAYOUTS, alibi_bias, relative_buckets, relative_distance, rotary_encoding


def alibi(query: jax.Array, positions: jax.Array, key_positions: jax.Array) -> jax.Array:
    """Returns the bias of ALiBi, see `tfm.positions.alibi_bias`, for the heads of query [B, L, H, K]."""
    return alibi_bias(positions, key_positions, query.shape[-2])


class RelativeKeys(nn.Module):
    """Relative positions with a learned vector for each distance (Shaw et al. 2018, equation 4).

    The vector is added to the key. This adds the product of query and vector to the logit. All heads of a
    layer share one table. The vectors that the paper also adds to the values (equation 3) are left out.

    Attributes:
      max_distance: Maximum distance, k. Larger distances use the vector of the maximum distance.
    """

    max_distance: int = 16

    @nn.compact
    def __call__(self, query: jax.Array, positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        """Computes the term of the logits.

        Args:
          query: Queries times the scale of the logits, [B, L, H, K].
          positions: Positions of the queries, int [B, L] or [L].
          key_positions: Positions of the keys, int [B, M] or [M].

        Returns:
          [B, H, L, M].
        """
        k = self.max_distance
        table = self.param("keys", KERNEL_INIT, (2 * k + 1, query.shape[-1]))
        products = jnp.einsum("blhk,rk->bhlr", query, table.astype(query.dtype))
        distance = jnp.clip(relative_distance(positions, key_positions), -k, k) + k
        return jnp.take_along_axis(products, distance.reshape(-1, 1, *distance.shape[-2:]), axis=-1)


class RelativeBias(nn.Module):
    """Relative positions with a learned number for each head and bucket of distances (T5).

    See Raffel et al. 2020, section 2.1. Here, each layer has a separate table. In T5, all layers of a stack
    share one table.

    Attributes:
      heads: Number of heads, H.
      buckets, max_distance, bidirectional: See `tfm.positions.relative_buckets`.
    """

    heads: int
    buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = True
    parameter_axes: ClassVar = {"biases": ("buckets", "heads")}

    @nn.compact
    def __call__(self, query: jax.Array, positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        """Computes a bias for each head from the distance between query and key.

        Returns [H, L, M], or [B, H, L, M] if the positions have the axis B. `query` is unused; it is an
        argument so that this module can be called like `RelativeKeys`.
        """
        table = self.param("biases", KERNEL_INIT, (self.buckets, self.heads))
        bucket = relative_buckets(
            relative_distance(positions, key_positions),
            buckets=self.buckets,
            max_distance=self.max_distance,
            bidirectional=self.bidirectional,
        )
        return jnp.moveaxis(jnp.take(table, bucket, axis=0), -1, -3)


INTERLEAVED_AND_ROTARY = "interleaved_and_rotary"
# The positions that add sinusoids to the embeddings, and the layout of the sinusoids.
SINUSOIDAL_POSITIONS = {layout: layout for layout in LAYOUTS} | {INTERLEAVED_AND_ROTARY: "interleaved"}
# The positions that act in self-attention, as functions of the number of heads. Each function returns the
# fields of `MultiHeadAttention` that implement the positions.
ATTENTION_POSITIONS: dict[str, Callable[[int], dict[str, Any]]] = {
    "none": lambda heads: {},
    "rotary": lambda heads: {"encode_positions": rotary_encoding},
    INTERLEAVED_AND_ROTARY: lambda heads: {"encode_positions": rotary_encoding},
    "relative_keys": lambda heads: {"position_bias": RelativeKeys()},
    "relative_bias": lambda heads: {"position_bias": RelativeBias(heads)},
    "alibi": lambda heads: {"position_bias": alibi},
}
ROTARY_POSITIONS = ("rotary", INTERLEAVED_AND_ROTARY)
BIAS_POSITIONS = ("relative_keys", "relative_bias", "alibi")  # the positions that add a term to the logits
POSITIONS = (*LAYOUTS, "learned", *ATTENTION_POSITIONS)
