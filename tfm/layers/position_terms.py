"""Positions inside self-attention: rotary, relative and linear terms, and the local window.

Each is a field of `MultiHeadAttention`: `encode_positions`, `position_bias` or `restrict_mask`. Shape letters
as in `tfm.layers`.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers.attention import RestrictMask
from tfm.layers.dense import KERNEL_INIT
from tfm.layers.parameter_axes import declare_axes
from tfm.masks import combine_masks, local_mask
from tfm.positions import LAYOUTS, alibi_bias, relative_buckets, relative_distance, rotary_encoding


def alibi(query: jax.Array, positions: jax.Array, key_positions: jax.Array) -> jax.Array:
    """Returns the bias of ALiBi, see `tfm.positions.alibi_bias`, for the heads of query [B, L, H, K]."""
    return alibi_bias(positions, key_positions, query.shape[-2])


@declare_axes({"position_bias/keys": ("distances", "features")})
class RelativeKeys(nn.Module):
    """A learned vector for each relative distance, added to the keys: Shaw et al. 2018, equation 4.

    All heads of a layer share one table. The vectors added to values (equation 3) are left out.

    Attributes:
      max_distance: Maximum distance, k. Larger distances are clipped.
    """

    max_distance: int = 16

    @nn.compact
    def __call__(self, query: jax.Array, positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        """Maps scaled query [B, L, H, K] and positions [B, L] or [L], [B, M] or [M] to [B, H, L, M]."""
        k = self.max_distance
        table = self.param("keys", KERNEL_INIT, (2 * k + 1, query.shape[-1]))
        products = jnp.einsum("blhk,rk->bhlr", query, table.astype(query.dtype))
        distance = jnp.clip(relative_distance(positions, key_positions), -k, k) + k
        return jnp.take_along_axis(products, distance.reshape(-1, 1, *distance.shape[-2:]), axis=-1)


@declare_axes({"position_bias/biases": ("buckets", "heads")})
class RelativeBias(nn.Module):
    """A learned number for each head and bucket of distances: T5 (Raffel et al. 2020), section 2.1.

    Each layer has its own table; T5 shares one among the layers of a stack.

    Attributes:
      heads: Number of heads, H.
      buckets, max_distance, bidirectional: See `tfm.positions.relative_buckets`.
    """

    heads: int
    buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = True

    @nn.compact
    def __call__(self, query: jax.Array, positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        """Maps positions [B, L] or [L], [B, M] or [M] to [B, H, L, M] or [H, L, M]; ignores the query."""
        table = self.param("biases", KERNEL_INIT, (self.buckets, self.heads))
        bucket = relative_buckets(
            relative_distance(positions, key_positions),
            buckets=self.buckets,
            max_distance=self.max_distance,
            bidirectional=self.bidirectional,
        )
        return jnp.moveaxis(jnp.take(table, bucket, axis=0), -1, -3)


def restrict_to_window(window: int) -> RestrictMask:
    """Returns the `restrict_mask` that sees only a neighbourhood, see `tfm.masks.local_mask`."""

    def restrict(mask, positions, key_positions):
        return combine_masks(mask, local_mask(positions, key_positions, window))

    return restrict


# Positions that are not added to embeddings: {name: number of heads -> fields of self-attention}.
ATTENTION_POSITIONS: dict[str, Callable[[int], dict[str, Any]]] = {
    "none": lambda heads: {},
    "rotary": lambda heads: {"encode_positions": rotary_encoding},
    "relative_keys": lambda heads: {"position_bias": RelativeKeys()},
    "relative_bias": lambda heads: {"position_bias": RelativeBias(heads)},
    "alibi": lambda heads: {"position_bias": alibi},
}
BIAS_POSITIONS = ("relative_keys", "relative_bias", "alibi")  # they add to the logits
POSITIONS = (*LAYOUTS, "learned", *ATTENTION_POSITIONS)


def make_position_terms(positions: str, heads: int) -> dict[str, Any]:
    """Returns the fields of a `MultiHeadAttention` for one of `POSITIONS`. Many of them need no field."""
    return ATTENTION_POSITIONS[positions](heads) if positions in ATTENTION_POSITIONS else {}
