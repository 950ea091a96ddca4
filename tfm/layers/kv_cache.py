"""The cache of incremental decoding, a pytree that every decoding step receives and returns.

All W hypotheses of a row share one pool of slots in each layer. Slot (t, w) contains the key and the value
that hypothesis w computed at step t. Reordering the hypotheses does not move keys and values. Instead, the
cache records for each hypothesis and each step which slot its ancestor wrote, and a mask selects these slots.

The pool can begin with a prefix, such as the prompt of a language model. All hypotheses of a row share the
prefix. Therefore the prefix has only one slot for each position, and one forward pass fills it.

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
    """The cached keys and values of one layer, in the layout that the matrix products need.

    Attributes:
      key, value: The pool of self-attention, [B, H, K, P + T * W] and [B, H, P + T * W, V].
      source: Keys [B, H, K, M] and values [B, H, M, V] of the encoder output. None without cross-attention.
      windows: The last R - 1 inputs [B, W, R - 1, D] and hidden vectors [B, W, R - 1, F] of a feed-forward
        network whose convolutions have a kernel of R positions. None with kernel 1.
      prefix: Number of positions in the prefix, P.
    """

    key: jax.Array
    value: jax.Array
    source: KeyValue | None = None
    windows: tuple[jax.Array, jax.Array] | None = None
    prefix: int = flax.struct.field(pytree_node=False, default=0)

    @classmethod
    def empty(cls, key: jax.Array, value: jax.Array, *, slots: int, source: KeyValue | None = None) -> Self:
        """Returns a cache of zeros, without a prefix.

        Args:
          key, value: Key [B, 1, H, K] and value [B, 1, H, V] of one position. Only shapes and dtypes matter.
          slots: Number of slots, T * W.
          source: Keys [B, M, H, K] and values [B, M, H, V] of the encoder output, or None. H, K and V may
            differ from the key and the value above.
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
        """Returns the cache with the keys and values of one step written to the slots of that step.

        Args:
          key, value: [B, W, H, K] and [B, W, H, V].
          position: Number of the step, an int32 scalar counted from 0 after the prefix.
        """
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
        """Returns the keys [B, H, K, count] and values [B, H, count, V] of the first `count` slots."""
        return self.key[..., :count], self.value[:, :, :count]

    def reorder(self, parents: jax.Array) -> Self:
        """Returns the cache in which hypothesis w of row b continues hypothesis `parents[b, w]`.

        Reordering hypotheses moves their `windows`, but not their slots.
        """
        return self if self.windows is None else self.replace(windows=gather_beams(self.windows, parents))


def _lay_out(key: jax.Array, value: jax.Array) -> KeyValue:
    """Transposes keys [B, M, H, K] to [B, H, K, M] and values [B, M, H, V] to [B, H, M, V]."""
    return key.transpose(0, 2, 3, 1), value.swapaxes(1, 2)


class DecodingCache(flax.struct.PyTreeNode, kw_only=True):
    """The state of decoding between two steps.

    Attributes:
      layers: A `KeyValueCache` for each layer, or another pytree with a method `reorder(parents)`.
      ancestors: int32 [B, W, T]. Slot (t, ancestors[b, w, t]) contains step t of hypothesis w.
      prefix_mask: bool [B, P], True where the prefix has a token, False where it is padding. None without a
        prefix.
      source_mask: bool [B, 1, 1, M], True where the source has a token. None without a source.
      coverage: float32 [B, W, M], the attention of each hypothesis to each source position, summed over its
        steps. None without a source.
    """

    layers: list[Any]
    ancestors: jax.Array
    prefix_mask: Any = None
    source_mask: jax.Array | None = None
    coverage: jax.Array | None = None

    @property
    def max_length(self) -> int:
        """Number of steps, T."""
        return self.ancestors.shape[-1]

    def begin_step(self, position: jax.Array | int) -> tuple[Self, dict[str, jax.Array]]:
        """Assigns the slot (position, w) to hypothesis w for the step `position`.

        Args:
          position: Number of the step, counted from 0 after the prefix.

        Returns:
          The cache, and these arguments of `Layer.decode_step`:
            mask: bool [B, 1, W, P + T * W], True for the tokens of the prefix, and for the slots of each
              hypothesis' ancestors up to and including this step.
            positions: Position of each hypothesis within its sequence, int [W], or [B, W] with a prefix,
              because prefixes have different lengths.
            key_positions: Position of each slot, int [T * W], or [B, P + T * W] with a prefix.
            source_mask: The field `source_mask`, if it is set.

        Raises:
          ValueError: If `position` is not traced and is at least T. A traced position is not checked.
        """
        if isinstance(position, int | np.integer) and position >= self.max_length:
            raise ValueError(
                f"Expected position to be below the cache's max_length {self.max_length}, got {position}. "
                "Create the cache with a larger max_length."
            )
        batch, width, length = self.ancestors.shape
        cache = self.replace(ancestors=self.ancestors.at[:, :, position].set(jnp.arange(width)))
        is_ancestor = cache.ancestors[..., None] == jnp.arange(width)  # [B, W, T, W]
        past = causal_mask(jnp.asarray(position)[None], jnp.arange(length))[0, 0]  # [T]
        mask = (is_ancestor & past[:, None]).reshape(batch, 1, width, length * width)
        positions, key_positions = jnp.full(width, position), jnp.arange(length * width) // width
        if self.prefix_mask is not None:
            prefix = self.prefix_mask[:, None, None]
            prefix_length = self.prefix_mask.sum(-1, dtype=jnp.int32)[:, None]
            mask = jnp.concatenate(
                [jnp.broadcast_to(prefix, (*mask.shape[:3], prefix.shape[-1])), mask], axis=-1
            )
            positions = jnp.broadcast_to(prefix_length + position, (batch, width))
            key_positions = jnp.concatenate(
                [self._prefix_positions(), prefix_length + key_positions], axis=-1
            )
        where = {"mask": mask, "positions": positions, "key_positions": key_positions}
        return cache, where if self.source_mask is None else where | {"source_mask": self.source_mask}

    def append_prefix(self, mask: jax.Array) -> tuple[Self, dict[str, jax.Array]]:
        """Appends P' positions to the prefix. Does not change the layers.

        Args:
          mask: bool [B, P'], True for tokens and False for padding.

        Returns:
          The cache, and these arguments of `Layer.prefill`:
            mask: bool [B, 1, P', P + P'], True for the tokens up to and including each of the new positions.
            positions: int32 [B, P'], counted from 0 in each row.
            key_positions: int32 [B, P + P'].
        """
        cache = self.replace(prefix_mask=jnp.concatenate([self.prefix_mask, mask], axis=1))
        key_positions, slots = cache._prefix_positions(), jnp.arange(cache.prefix_mask.shape[1])
        new = slice(len(slots) - mask.shape[1], None)
        visible = causal_mask(slots[new], slots)[None] & cache.prefix_mask[:, None, None]
        # A table of learned positions has no row for the position of padding, -1.
        positions = jnp.maximum(key_positions[:, new], 0)
        return cache, {"mask": visible, "positions": positions, "key_positions": key_positions}

    def _prefix_positions(self) -> jax.Array:
        """Returns the position of each token in the prefix, int32 [B, P], counted from 0 in each row.

        Padding has the position -1, unlike all tokens, so that edits do not take it for a token.
        """
        return jnp.where(self.prefix_mask, jnp.cumsum(self.prefix_mask, axis=-1) - 1, -1)

    def add_coverage(self, weights: jax.Array) -> Self:
        """Returns the cache with the attention weights [B, W, M] of one step added to `coverage`."""
        return self.replace(coverage=weights if self.coverage is None else self.coverage + weights)

    def reorder(self, parents: jax.Array) -> Self:
        """Returns the cache in which hypothesis w of row b continues hypothesis `parents[b, w]`."""
        coverage = None if self.coverage is None else gather_beams(self.coverage, parents)
        return self.replace(
            layers=[layer.reorder(parents) for layer in self.layers],
            ancestors=gather_beams(self.ancestors, parents),
            coverage=coverage,
        )
