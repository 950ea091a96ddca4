"""The explicit key-value cache of incremental decoding: a pytree that goes in and comes out of every step.

All W hypotheses of a batch row share one pool of cached positions. Slot (t, w) of the pool holds what the
hypothesis that was number w at step t computed then. When beams reorder, no features move: each hypothesis
keeps, for every step, the slot its own ancestor wrote, and a mask selects these slots of the pool.

What all hypotheses of a row have in common, such as the prompt of a language model, is a prefix of the pool:
one slot a position, filled in one pass.

Shape letters as in `tfm.layers`: B batch, H heads, K and V features, M source length, W hypotheses,
T cached positions, P positions of the prefix.
"""

from typing import Any, Self

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from tfm.masks import causal_mask
from tfm.search.state import gather_beams


class KeyValueCache(flax.struct.PyTreeNode, kw_only=True):
    """Keys and values of one layer's self-attention, in the memory layout that its products read.

    Attributes:
      key, value: the pool, [B, H, K, P + T * W] and [B, H, P + T * W, V].
      prefix: P, static.
    """

    key: jax.Array
    value: jax.Array
    prefix: int = flax.struct.field(pytree_node=False, default=0)

    @classmethod
    def empty(cls, own: tuple[jax.Array, jax.Array], width: int, max_length: int, **arrays: Any) -> Self:
        """A pool of T = `max_length` positions of W = `width` hypotheses, without a prefix.

        Args:
          own: key [B, 1, H, K] and value [B, 1, H, V] of one position, for shape and dtype alone.
          width, max_length: W and T.
          arrays: further fields of a subclass.
        """
        key, value = own
        batch, _, heads, features = key.shape
        slots = max_length * width
        return cls(
            key=jnp.zeros((batch, heads, features, slots), key.dtype),
            value=jnp.zeros((batch, value.shape[2], slots, value.shape[-1]), value.dtype),
            **arrays,
        )

    def write(self, position: jax.Array, key: jax.Array, value: jax.Array) -> Self:
        """The cache with slots `position` set to key [B, W, H, K] and value [B, W, H, V]."""
        start = self.prefix + position * key.shape[1]
        put = jax.lax.dynamic_update_slice_in_dim
        return self.replace(
            key=put(self.key, key.transpose(0, 2, 3, 1), start, axis=3),
            value=put(self.value, value.swapaxes(1, 2), start, axis=2),
        )

    def append_prefix(self, key: jax.Array, value: jax.Array) -> Self:
        """The cache with key [B, P', H, K] and value [B, P', H, V] behind its prefix."""
        before, key, value = self.prefix, key.transpose(0, 2, 3, 1), value.swapaxes(1, 2)
        keys = [self.key[..., :before], key, self.key[..., before:]]
        values = [self.value[:, :, :before], value, self.value[:, :, before:]]
        return self.replace(
            key=jnp.concatenate(keys, axis=3),
            value=jnp.concatenate(values, axis=2),
            prefix=before + key.shape[-1],
        )


class LayerCache(KeyValueCache, kw_only=True):
    """A `KeyValueCache` of a layer that attends to an encoder's output, too.

    Attributes:
      memory_key, memory_value: of the encoder output, [B, H, K, M] and [B, H, M, V]; once for all W.
    """

    memory_key: jax.Array
    memory_value: jax.Array

    @classmethod
    def empty(  # type: ignore[override]  # a constructor, called by the name of its class
        cls,
        own: tuple[jax.Array, jax.Array],
        memory: tuple[jax.Array, jax.Array],
        width: int,
        max_length: int,
    ) -> Self:
        """A pool of T = `max_length` positions of W = `width` hypotheses.

        Args:
          own: key [B, 1, H, K] and value [B, 1, H, V] of one position, for shape and dtype alone.
          memory: key and value [B, M, ...] of the encoder output, perhaps of other heads and features.
          width, max_length: W and T.
        """
        memory_key, memory_value = memory[0].transpose(0, 2, 3, 1), memory[1].swapaxes(1, 2)
        return super().empty(own, width, max_length, memory_key=memory_key, memory_value=memory_value)

    def positions(self, width: int) -> jax.Array:
        """int32 [T * W], the position that each slot of the pool holds."""
        return jnp.arange(self.key.shape[-1]) // width

    @property
    def memory_positions(self) -> jax.Array:
        """int32 [M]."""
        return jnp.arange(self.memory_key.shape[-1])


class HypothesisCache(flax.struct.PyTreeNode, kw_only=True):
    """The state of decoding between two positions: what each hypothesis owns of the pools.

    Attributes:
      layers: a `KeyValueCache` for each layer.
      ancestors: int32 [B, W, T]; hypothesis w has its position t in pool slot (t, ancestors[b, w, t]).
    """

    layers: list[Any]
    ancestors: jax.Array

    @property
    def max_length(self) -> int:
        """T, the number of positions."""
        return self.ancestors.shape[-1]

    def begin(self, position: jax.Array | int) -> Self:
        """The cache for `position`, where each hypothesis writes its own slot.

        Raises:
          ValueError: the position is known at trace time and is T or more.
        """
        if isinstance(position, int | np.integer) and position >= self.max_length:
            raise ValueError(
                f"position must be below the cache's max_length {self.max_length}, got {position}"
            )
        own = jnp.arange(self.ancestors.shape[1])
        return self.replace(ancestors=self.ancestors.at[:, :, position].set(own))

    def ancestor_mask(self, position: jax.Array) -> jax.Array:
        """bool [B, 1, W, T * W]: which pool slots hold a hypothesis' own history, up to `position`."""
        batch, width, length = self.ancestors.shape
        is_ancestor = self.ancestors[..., None] == jnp.arange(width)  # [B, W, T, W]
        past = causal_mask(jnp.asarray(position)[None], jnp.arange(length))[0, 0]  # [T]
        return (is_ancestor & past[:, None]).reshape(batch, 1, width, length * width)

    def reorder(self, parents: jax.Array) -> Self:
        """The cache of hypotheses that continue `parents`, int32 [B, W]: copies W * T integers a row."""
        return self.replace(ancestors=gather_beams(self.ancestors, parents))


class DecodeCache(HypothesisCache, kw_only=True):
    """The state of decoding of a model that attends to a source.

    Attributes:
      memory_mask: bool [B, 1, 1, M], which source positions are tokens.
      coverage: float32 [B, W, M], attention of each hypothesis to each source position so far, summed.
    """

    memory_mask: jax.Array
    coverage: jax.Array

    def add_coverage(self, weights: jax.Array) -> Self:
        """The cache with attention weights [B, W, M] of one more position added to `coverage`."""
        return self.replace(coverage=self.coverage + weights)

    def reorder(self, parents: jax.Array) -> Self:
        """The cache of hypotheses that continue `parents`, int32 [B, W]: copies W * (T + M) numbers a row."""
        return super().reorder(parents).replace(coverage=gather_beams(self.coverage, parents))


class PrefixCache(HypothesisCache, kw_only=True):
    """The state of decoding of a language model: a prefix of each row, and what its hypotheses add.

    Attributes:
      prefix_mask: bool [B, P], which positions of the prefix are tokens; padding stands behind them.
    """

    prefix_mask: jax.Array

    @property
    def prefix_lengths(self) -> jax.Array:
        """int32 [B], the tokens of each row's prefix: the position of the first token behind it."""
        return self.prefix_mask.sum(-1, dtype=jnp.int32)

    def append_prefix(self, mask: jax.Array) -> Self:
        """The cache with tokens, bool [B, P'], behind its prefix; its layers are not changed."""
        return self.replace(prefix_mask=jnp.concatenate([self.prefix_mask, mask], axis=1))

    def prefix_positions(self) -> jax.Array:
        """int32 [B, P], the position of each token of the prefix."""
        return jnp.cumsum(self.prefix_mask, axis=-1) - 1

    def slot_mask(self, position: jax.Array) -> jax.Array:
        """bool [B, 1, W, P + T * W]: the slots that each hypothesis attends to at `position`."""
        own = self.ancestor_mask(position)
        prefix = self.prefix_mask[:, None, None]
        return jnp.concatenate([jnp.broadcast_to(prefix, (*own.shape[:3], prefix.shape[-1])), own], axis=-1)

    def slot_positions(self) -> jax.Array:
        """int32 [B, P + T * W], the position that each slot holds."""
        width, length = self.ancestors.shape[1:]
        own = self.prefix_lengths[:, None] + jnp.arange(length * width) // width
        return jnp.concatenate([self.prefix_positions(), own], axis=-1)
