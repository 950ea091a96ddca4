"""Relative positions as a bias of the logits of self-attention, learned in each layer.

Shape letters as in `tfm.layers`. A bias is the field `position_bias` of `MultiHeadAttention`.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers.dense import KERNEL_INIT
from tfm.layers.parameter_axes import declare_axes
from tfm.positions import alibi_bias, relative_buckets, relative_distance


def linear_bias(query: jax.Array, positions: jax.Array, memory_positions: jax.Array) -> jax.Array:
    """ALiBi, see `tfm.positions.alibi_bias`, of as many heads as the query [B, L, H, K] has."""
    return alibi_bias(positions, memory_positions, query.shape[-2])


@declare_axes({"position_bias/keys": ("distances", "features")})
class RelativeKeys(nn.Module):
    """A vector for each relative distance, added to the keys: Shaw et al. 2018, equation 4 with a^V = 0.

    The vectors of values, their equation 3, are left out. One table serves all heads of a layer.

    Attributes:
      max_distance: k, beyond which distances are clipped; 16 in their base model.
    """

    max_distance: int = 16

    @nn.compact
    def __call__(self, query: jax.Array, positions: jax.Array, memory_positions: jax.Array) -> jax.Array:
        """query [B, L, H, K], scaled, and positions [B, L] or [L], [B, M] or [M] -> [B, H, L, M]."""
        most = self.max_distance
        shape = (2 * most + 1, query.shape[-1])
        table = self.param("keys", KERNEL_INIT, shape)
        products = jnp.einsum("blhk,rk->bhlr", query, table.astype(query.dtype))
        distance = jnp.clip(relative_distance(positions, memory_positions), -most, most)
        index = distance.reshape(-1, 1, *distance.shape[-2:]) + most  # of all heads, without a copy for each
        return jnp.take_along_axis(products, index, axis=-1)


@declare_axes({"position_bias/biases": ("buckets", "heads")})
class RelativeBias(nn.Module):
    """A number for each head and bucket of relative distances: T5 (Raffel et al. 2020), section 2.1.

    T5 shares one table among the layers of a stack; here each layer has its own.

    Attributes:
      heads: H.
      buckets, max_distance, bidirectional: as in `tfm.positions.relative_buckets`.
    """

    heads: int
    buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = True

    @nn.compact
    def __call__(self, query: jax.Array, positions: jax.Array, memory_positions: jax.Array) -> jax.Array:
        """Positions [B, L] or [L], [B, M] or [M] -> [B, H, L, M] or [H, L, M]; the query is not read."""
        table = self.param("biases", KERNEL_INIT, (self.buckets, self.heads))
        bucket = relative_buckets(
            relative_distance(positions, memory_positions),
            buckets=self.buckets,
            max_distance=self.max_distance,
            bidirectional=self.bidirectional,
        )
        return jnp.moveaxis(jnp.take(table, bucket, axis=0), -1, -3)
