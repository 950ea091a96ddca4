"""A layer with local attention, and its cache. Shape letters as in `tfm.systems.t_dmca.model`."""

from typing import Any, Self

import flax.struct
import jax.numpy as jnp
from jax import Array

from tfm.layers.kv_cache import KeyValue
from tfm.layers.observe import activate
from tfm.search.state import gather_beams
from tfm.systems.t_dmca.slots import DecoderLayer, attend_to_hypotheses, find_tokens, write, write_step


class LocalCache(flax.struct.PyTreeNode):
    """The keys and values of the current block of each hypothesis, at the slot `position % block`.

    Attributes:
      key, value: [B, W, block, G, K] and [B, W, block, G, V].
    """

    key: Array
    value: Array

    def reorder(self, parents: Array) -> Self:
        """Returns the cache in which hypothesis w of row b continues hypothesis `parents[b, w]`."""
        return gather_beams(self, parents)


class LocalLayer(DecoderLayer):
    """A layer whose self-attention sees the earlier positions of a block.

    Attributes:
      block: Number of positions of a block.
    """

    block: int = 256

    def __call__(self, x: Array, *, segments: Array, positions: Array, train: bool) -> Array:
        """Applies the layer to x [B, L, D] with segments and positions int [B, L]. Returns [B, L, D]."""

        def attend(x):
            keys = self.self_attention.keys_values(x, positions)
            return self._attend_in_blocks(x, keys, segments, positions, train=train)

        return self.apply_sublayers(x, attend, train=train)

    def _attend_in_blocks(
        self, x: Array, keys: KeyValue, segments: Array, positions: Array, *, train: bool
    ) -> Array:
        """Computes the attention of x [B, L, D] to keys [B, L, G, K] and values [B, L, G, V].

        Positions need not begin with a row, so a block of positions extends over at most two blocks of a row.
        Therefore the queries of each block of a row see the keys of this block and of the previous block.
        """
        (batch, length, _), size = x.shape, min(self.block, x.shape[1])
        count = -(-length // size)

        def split(array: Array, with_previous: bool = False) -> Array:
            """Returns blocks [B * count, size or 2 * size, ...] of an array [B, L, ...]."""
            padding = ((0, 0), (0, count * size - length), *[(0, 0)] * (array.ndim - 2))
            blocks = jnp.pad(array, padding).reshape(batch, count, size, *array.shape[2:])
            if with_previous:
                previous = jnp.concatenate([jnp.zeros_like(blocks[:, :1]), blocks[:, :-1]], axis=1)
                blocks = jnp.concatenate([previous, blocks], axis=2)
            return blocks.reshape(batch * count, *blocks.shape[2:])

        positions_of, segments_of = split(positions), split(segments)
        key_positions, key_segments = split(positions, True), split(segments, True)
        distance = positions_of[:, :, None] - key_positions[:, None]
        is_visible = (segments_of[:, :, None] == key_segments[:, None]) & (key_segments > 0)[:, None]
        is_visible &= (distance >= 0) & (distance <= (positions_of % self.block)[:, :, None])
        where = {"positions": positions_of, "key_positions": key_positions}
        key, value = (split(each, True) for each in keys)
        with activate(None):  # Observers expect rows, not blocks.
            y = self.self_attention.attend(
                split(x), key, value, mask=is_visible[:, None], **where, train=train
            )
        return y.reshape(batch, count * size, -1)[:, :length]

    def init_cache(
        self, example: Array, encoder_output: None = None, *, width: int, max_length: int
    ) -> LocalCache:
        """Returns an empty cache, see `Layer.init_cache`. Its size does not depend on `max_length`."""
        with activate(None):
            keys = self.self_attention.keys_values(example, jnp.arange(1))
        return LocalCache(*(jnp.zeros((len(x), width, self.block, *x.shape[2:]), x.dtype) for x in keys))

    def prefill(
        self, x: Array, cache: LocalCache, *, mask: Array, positions: Array, key_positions: Array
    ) -> tuple[Array, LocalCache]:
        """Computes more positions of the prefix, see `Layer.prefill`.

        Args:
          x: Input of the layer at the P' new positions, [B, P', D].
          cache: The cache of a prefix of P positions. No hypothesis may have written to it.
          mask: Ignored, because the block of each position decides what it sees.
          positions: Positions of x, int [B, P'].
          key_positions: Positions of the whole prefix, int [B, P + P']. Padding has -1. They only serve to
            find the tokens.

        Returns:
          The output [B, P', D], and the cache of the longer prefix.
        """
        is_token, before = find_tokens(x, key_positions)
        # The slots of the cache with positions of the block in which the prefix ended so far.
        slots = jnp.arange(self.block)
        is_used = slots < (before % self.block)[:, None]
        slot_positions = (before // self.block * self.block)[:, None] + slots
        joined_positions = jnp.concatenate([slot_positions, positions], axis=1)
        segments = jnp.concatenate([is_used, is_token], axis=1).astype(jnp.int32)
        end = before + is_token.sum(-1)
        is_last = is_token & (positions >= end[:, None] - self.block)
        slot = jnp.where(is_last, positions % self.block, self.block)  # a write beyond the slots is dropped
        written: list[Any] = []

        def attend(x):
            keys = self.self_attention.keys_values(x, positions)
            cached = cache.key, cache.value
            for old, new in zip(cached, keys, strict=True):
                written.append(jnp.broadcast_to(write(old[:, 0], slot, new)[:, None], old.shape))
            key, value = (
                jnp.concatenate([old[:, 0], new], axis=1) for old, new in zip(cached, keys, strict=True)
            )
            x = jnp.pad(x, ((0, 0), (self.block, 0), (0, 0)))
            return self._attend_in_blocks(x, (key, value), segments, joined_positions, train=False)[
                :, self.block :
            ]

        x = self.apply_sublayers(x, attend, train=False)
        return x, LocalCache(*written)

    def decode_step(
        self,
        x: Array,
        cache: LocalCache,
        position: Array,
        *,
        mask: Array,
        positions: Array,
        key_positions: Array,
    ) -> tuple[Array, LocalCache]:
        """Computes the next position of each of W hypotheses, see `Layer.decode_step`."""
        positions = jnp.broadcast_to(positions, x.shape[:2])
        slot = positions % self.block
        slots = jnp.arange(self.block)
        is_visible = slots <= slot[..., None]
        at = (positions - slot)[..., None] + slots
        written: list[Any] = []

        def attend(x):
            keys = self.self_attention.keys_values(x, positions)
            cached = cache.key, cache.value
            written.extend(write_step(old, slot, new) for old, new in zip(cached, keys, strict=True))
            return attend_to_hypotheses(self.self_attention, x, written, is_visible, at, positions)

        x = self.apply_sublayers(x, attend, train=False)
        return x, LocalCache(*written)
