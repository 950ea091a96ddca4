"""The explicit cache of incremental decoding: a pytree that every step receives and returns.

All W hypotheses of a row share one pool of slots in each layer. Slot (t, w) holds what hypothesis w computed
at step t. When hypotheses are reordered, no keys or values move. Instead, each hypothesis remembers for every
step which slot its ancestor wrote, and a mask selects these slots.

The pool can begin with a prefix, such as the prompt of a language model. All hypotheses of a row share the
prefix, so it has one slot for each position and is filled in one pass.

Shape letters as in `tfm.layers`: B rows, H heads, K and V features, M source positions, W hypotheses, T
steps, P positions of the prefix.
"""

from typing import Any, Self

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from tfm.masks import causal_mask
from tfm.search.state import gather_beams

KeyValue = tuple[jax.Array, jax.Array]


class KeyValueCache(flax.struct.PyTreeNode, kw_only=True):
    """Keys and values of one layer, in the layout that the matrix products read.

    Attributes:
      key, value: The pool of self-attention, [B, H, K, P + T * W] and [B, H, P + T * W, V].
      source: Keys [B, H, K, M] and values [B, H, M, V] of the encoder output, or None.
      prefix: Number of positions in the prefix, P.
    """

    key: jax.Array
    value: jax.Array
    source: KeyValue | None = None
    prefix: int = flax.struct.field(pytree_node=False, default=0)

    @classmethod
    def empty(cls, key: jax.Array, value: jax.Array, *, slots: int, source: KeyValue | None = None) -> Self:
        """Returns a cache without a prefix.

        Args:
          key, value: Key [B, 1, H, K] and value [B, 1, H, V] of one position. Only shapes and dtypes matter.
          slots: Number of slots, T * W.
          source: Keys [B, M, ...] and values [B, M, ...] of the encoder output, or None. They may have other
            heads and features.
        """
        batch, _, heads, features = key.shape
        if source is not None:
            source = _lay_out(*source)
        return cls(
            key=jnp.zeros((batch, heads, features, slots), key.dtype),
            value=jnp.zeros((batch, value.shape[2], slots, value.shape[-1]), value.dtype),
            source=source,
        )

    def write(self, key: jax.Array, value: jax.Array, position: jax.Array) -> Self:
        """Returns the cache with key [B, W, H, K] and value [B, W, H, V] in the slots of a step."""
        start = self.prefix + position * key.shape[1]
        put = jax.lax.dynamic_update_slice_in_dim
        key, value = _lay_out(key, value)
        return self.replace(
            key=put(self.key, key, start, axis=3), value=put(self.value, value, start, axis=2)
        )

    def append_prefix(self, key: jax.Array, value: jax.Array) -> Self:
        """Returns the cache with key [B, P', H, K] and value [B, P', H, V] appended to the prefix."""
        end, (key, value) = self.prefix, _lay_out(key, value)
        return self.replace(
            key=jnp.concatenate([self.key[..., :end], key, self.key[..., end:]], axis=3),
            value=jnp.concatenate([self.value[:, :, :end], value, self.value[:, :, end:]], axis=2),
            prefix=end + key.shape[-1],
        )

    def first_slots(self, count: int) -> KeyValue:
        """Returns the key and the value of the first slots, [B, H, K, count] and [B, H, count, V]."""
        return self.key[..., :count], self.value[:, :, :count]

    def reorder(self, parents: jax.Array) -> Self:
        """Returns the cache itself, because the slots of the hypotheses do not move."""
        return self


def _lay_out(key, value):
    """Transposes [B, M, H, K] and [B, M, H, V] to [B, H, K, M] and [B, H, M, V]."""
    return key.transpose(0, 2, 3, 1), value.swapaxes(1, 2)


class DecodingCache(flax.struct.PyTreeNode, kw_only=True):
    """The state of decoding between two steps.

    Attributes:
      layers: A `KeyValueCache` for each layer, or another pytree with a method `reorder(parents)`.
      ancestors: int32 [B, W, T]. Hypothesis w has its step t in slot (t, ancestors[b, w, t]).
      prefix_mask: bool [B, P], which positions of the prefix are tokens; the others follow them. None without
        a prefix.
      source_mask: bool [B, 1, 1, M], which source positions are tokens. None without a source.
      coverage: float32 [B, W, M], the sum of each hypothesis' attention to the source. None without a source.
    """

    layers: list[Any]
    ancestors: jax.Array
    prefix_mask: jax.Array | None = None
    source_mask: jax.Array | None = None
    coverage: jax.Array | None = None

    @property
    def max_length(self) -> int:
        """Number of steps, T."""
        return self.ancestors.shape[-1]

    def claim_slots(self, position: jax.Array | int) -> Self:
        """Returns the cache for a step in which each hypothesis writes into its own slot.

        Raises:
          ValueError: The position is known while tracing and is T or more.
        """
        if isinstance(position, int | np.integer) and position >= self.max_length:
            raise ValueError(
                f"position must be below the cache's max_length {self.max_length}, got {position}"
            )
        hypotheses = jnp.arange(self.ancestors.shape[1])
        return self.replace(ancestors=self.ancestors.at[:, :, position].set(hypotheses))

    def history_mask(self, position: jax.Array) -> jax.Array:
        """Returns bool [B, 1, W, P + T * W]: the prefix and the slots of each hypothesis up to `position`."""
        batch, width, length = self.ancestors.shape
        is_ancestor = self.ancestors[..., None] == jnp.arange(width)  # [B, W, T, W]
        past = causal_mask(jnp.asarray(position)[None], jnp.arange(length))[0, 0]  # [T]
        mask = (is_ancestor & past[:, None]).reshape(batch, 1, width, length * width)
        if self.prefix_mask is None:
            return mask
        prefix = jnp.broadcast_to(
            self.prefix_mask[:, None, None], (*mask.shape[:3], self.prefix_mask.shape[-1])
        )
        return jnp.concatenate([prefix, mask], axis=-1)

    def positions(self, position: jax.Array) -> jax.Array:
        """Returns the positions of the hypotheses in a step: int [W], or [B, W] after a prefix."""
        batch, width, _ = self.ancestors.shape
        if self.prefix_mask is None:
            return jnp.full(width, position)
        return jnp.broadcast_to(self.prefix_lengths[:, None] + position, (batch, width))

    def slot_positions(self) -> jax.Array:
        """Returns the position that each slot holds: int [T * W], or [B, P + T * W] with a prefix."""
        width, length = self.ancestors.shape[1:]
        steps = jnp.arange(length * width) // width
        if self.prefix_mask is None:
            return steps
        return jnp.concatenate([self.prefix_positions(), self.prefix_lengths[:, None] + steps], axis=-1)

    @property
    def prefix_lengths(self) -> jax.Array:
        """Number of tokens in the prefix of each row, int32 [B]."""
        return self._prefix_mask.sum(-1, dtype=jnp.int32)

    def prefix_positions(self) -> jax.Array:
        """Returns the position of each token of the prefix, int32 [B, P]."""
        return jnp.cumsum(self._prefix_mask, axis=-1) - 1

    def prefix_causal_mask(self, count: int) -> jax.Array:
        """Returns bool [B, 1, count, P]: what the last `count` positions of the prefix may attend to."""
        slots = jnp.arange(self._prefix_mask.shape[1])
        return causal_mask(slots[-count:], slots)[None] & self._prefix_mask[:, None, None]

    def append_prefix(self, mask: jax.Array) -> Self:
        """Returns the cache with bool [B, P'] appended to the mask of the prefix. Layers stay as they are."""
        return self.replace(prefix_mask=jnp.concatenate([self._prefix_mask, mask], axis=1))

    @property
    def _prefix_mask(self) -> jax.Array:
        if self.prefix_mask is None:
            raise ValueError("Expected a cache with a prefix, got a cache whose prefix_mask is None.")
        return self.prefix_mask

    def add_coverage(self, weights: jax.Array) -> Self:
        """Returns the cache with the attention weights [B, W, M] of one step added to `coverage`."""
        return self.replace(coverage=weights if self.coverage is None else self.coverage + weights)

    def reorder(self, parents: jax.Array) -> Self:
        """Returns the cache of hypotheses that continue `parents`, int32 [B, W]."""
        coverage = None if self.coverage is None else gather_beams(self.coverage, parents)
        return self.replace(
            layers=[layer.reorder(parents) for layer in self.layers],
            ancestors=gather_beams(self.ancestors, parents),
            coverage=coverage,
        )
