"""One layer of the encoder or the decoder (section 3.1). Shape letters as in `tfm.layers`."""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from tfm.layers.kv_cache import KeyValueCache
from tfm.layers.observe import activate
from tfm.layers.residual import Residual


class Layer(nn.Module):
    """Self-attention, attention to an encoder output if there is one, and the feed-forward network.

    Each sublayer has a residual connection around it. Under a causal mask the layer belongs to a decoder.

    Attributes:
      self_attention: A `tfm.layers.SelfAttention`, such as `MultiHeadAttention`.
      feed_forward: Maps ([B, L, D], train=) to [B, L, D], such as `FeedForward`.
      cross_attention: Attention to the encoder output. None for an encoder or a decoder without an encoder.
      residual: Makes the residual connection around one sublayer.
    """

    self_attention: nn.Module
    feed_forward: nn.Module
    cross_attention: Any = None  # a module or None
    residual: Callable[[], nn.Module] = Residual

    def setup(self) -> None:
        self.self_attention_residual = self.residual()
        if self.cross_attention is not None:
            self.cross_attention_residual = self.residual()
        self.feed_forward_residual = self.residual()

    def __call__(
        self,
        x: Array,
        encoder_output: Array | None = None,
        *,
        mask: Array | None,
        source_mask: Array | None = None,
        positions: Array | None = None,
        source_positions: Array | None = None,
        train: bool,
    ) -> Array:
        """Maps x [B, L, D] to [B, L, D].

        Args:
          x: [B, L, D].
          encoder_output: [B, M, D], for `cross_attention`.
          mask: bool, broadcastable to [B, H, L, L]. True where a position may attend.
          source_mask: bool, broadcastable to [B, H, L, M].
          positions: Positions of x, int [B, L] or [L].
          source_positions: Positions of the encoder output, int [B, M] or [M].
          train: Whether dropout is on.
        """

        def attend(x):
            return self.self_attention(
                x, x, mask=mask, positions=positions, key_positions=positions, train=train
            )

        def attend_to_source(x):
            where = {"mask": source_mask, "positions": positions, "key_positions": source_positions}
            return self.cross_attention(x, encoder_output, **where, train=train)

        return self._apply_sublayers(x, attend, attend_to_source, train)

    def _apply_sublayers(self, x, attend, attend_to_source, train):
        x = self.self_attention_residual(x, attend, train=train)
        if self.cross_attention is not None:
            x = self.cross_attention_residual(x, attend_to_source, train=train)
        feed_forward = functools.partial(self.feed_forward, train=train)
        return self.feed_forward_residual(x, feed_forward, train=train)

    def init_cache(
        self, example: Array, encoder_output: Any = None, *, width: int, max_length: int
    ) -> KeyValueCache:
        """Returns an empty cache of W = `width` hypotheses of up to T = `max_length` positions.

        Args:
          example: One position, [B, 1, D]. Only its shape and dtype matter.
          encoder_output: [B, M, D], whose keys and values are cached once for all hypotheses, or None.
          width, max_length: W and T.
        """
        with activate(None):  # nobody reads the keys of an example
            example = self.self_attention.keys_values(example, jnp.arange(1))
        source = None
        if self.cross_attention is not None:
            positions = jnp.arange(encoder_output.shape[1])
            source = self.cross_attention.keys_values(encoder_output, positions)
        return KeyValueCache.empty(*example, slots=width * max_length, source=source)

    def prefill(self, x: Array, cache: KeyValueCache, **where: Any) -> tuple[Array, KeyValueCache]:
        """Reads the next P' positions of the prefix that all hypotheses of a row share.

        Args:
          x: [B, P', D].
          cache: A cache with a prefix of P positions, into which no hypothesis has written.
          **where: mask [B, 1, P', P + P'], positions [B, P'] and key_positions [B, P + P'].

        Returns:
          [B, P', D] and the cache.
        """
        return self._decode(x, cache, KeyValueCache.append_prefix, **where)

    def decode_step(
        self, x: Array, cache: KeyValueCache, position: Array, **where: Any
    ) -> tuple[Array, KeyValueCache]:
        """Computes one position of W hypotheses, which attend to their own slots of a shared pool.

        Args:
          x: [B, W, D]. The hypotheses of a row are where `__call__` has the positions of a sequence.
          cache: A cache with a prefix of P positions.
          position: Position after the prefix, scalar.
          **where: mask [B, 1, W, P + T * W], which selects the slots of each hypothesis; positions [B, W] or
            [W]; key_positions [B, P + T * W] or [T * W]; source_mask [B, 1, 1, M] for `cross_attention`.

        Returns:
          [B, W, D] and the cache.
        """
        return self._decode(x, cache, functools.partial(KeyValueCache.write, position=position), **where)

    def _decode(self, x, cache, write, *, mask, positions, key_positions, source_mask=None):
        """Writes keys and values of x [B, L, D] to the cache, and attends to as many slots as `mask` has."""
        caches = [cache]

        def attend(x):
            caches.append(write(cache, *self.self_attention.keys_values(x, positions)))
            key, value = caches[-1].first_slots(mask.shape[-1])
            where = {"mask": mask, "positions": positions, "key_positions": key_positions}
            return self.self_attention.attend_cached(x, key, value, **where)

        def attend_to_source(x):
            key, value = cache.source
            where = {"mask": source_mask, "positions": positions, "key_positions": jnp.arange(key.shape[-1])}
            return self.cross_attention.attend_cached(x, key, value, **where)

        x = self._apply_sublayers(x, attend, attend_to_source, train=False)
        return x, caches[-1]
