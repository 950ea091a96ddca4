"""One layer of the encoder, one of the decoder (section 3.1), and one of a decoder without an encoder.

Shape letters as in `tfm.layers`.
"""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers import activations
from tfm.layers.kv_cache import KeyValueCache, LayerCache
from tfm.layers.residual import Residual


class EncoderLayer(nn.Module):
    """Self-attention (or another mixer), then the feed-forward network, each in a residual connection."""

    mixer: nn.Module
    feed_forward: nn.Module
    residual: Callable[[], nn.Module] = Residual

    def setup(self) -> None:
        self.mixer_residual = self.residual()
        self.feed_forward_residual = self.residual()

    def __call__(
        self, x: jax.Array, *, mask: jax.Array | None, positions: jax.Array | None = None, train: bool
    ) -> jax.Array:
        """x [B, L, D], mask [B, 1, L, L] or broadcastable, positions [B, L] or [L] -> [B, L, D]."""

        def mix(x):
            kwargs = {"positions": positions, "memory_positions": positions}
            return self.mixer(x, x, mask=mask, **kwargs, train=train)

        x = self.mixer_residual(x, mix, train=train)
        return self.feed_forward_residual(x, lambda x: self.feed_forward(x, train=train), train=train)


class CausalLayer(EncoderLayer):
    """A layer of a decoder without an encoder: masked self-attention, then the feed-forward network.

    Under a causal mask it is an `EncoderLayer`; what it adds is decoding over a cache.
    """

    def init_cache(self, x: jax.Array, width: int, max_length: int) -> KeyValueCache:
        """The layer's part of a decoding cache without a prefix; x [B, 1, D] gives shape and dtype alone."""
        with activations.intercept(None):  # for their shapes alone
            own = self.mixer.keys_values(x, jnp.arange(1))
        return KeyValueCache.empty(own, width, max_length)

    def prefill(
        self,
        x: jax.Array,
        cache: KeyValueCache,
        *,
        mask: jax.Array,
        positions: jax.Array,
        memory_positions: jax.Array,
    ) -> tuple[jax.Array, KeyValueCache]:
        """x [B, P', D], that follow the P of the cache's prefix -> [B, P', D] and the cache.

        mask [B, 1, P', P + P'], positions [B, P'], memory_positions [B, P + P'].
        """
        where = {"mask": mask, "positions": positions, "memory_positions": memory_positions}
        return self._attend_cached(x, cache.append_prefix, **where)

    def decode_step(
        self,
        x: jax.Array,
        cache: KeyValueCache,
        position: jax.Array,
        *,
        mask: jax.Array,
        positions: jax.Array,
        memory_positions: jax.Array,
    ) -> tuple[jax.Array, KeyValueCache]:
        """One position of W hypotheses: x [B, W, D] and the cache -> ([B, W, D], cache).

        mask [B, 1, W, P + T * W], positions [B, W], memory_positions [B, P + T * W].
        """
        where = {"mask": mask, "positions": positions, "memory_positions": memory_positions}
        return self._attend_cached(x, functools.partial(cache.write, position), **where)

    def _attend_cached(self, x, write, *, mask, positions, memory_positions):
        """(x, the cache that `write` makes of its keys and values): x attends to as many slots as `mask`."""
        written = None

        def mix(x):
            nonlocal written
            written = write(*self.mixer.keys_values(x, positions))
            slots = mask.shape[-1]
            key, value = written.key[..., :slots], written.value[:, :, :slots]
            kwargs = {"positions": positions, "memory_positions": memory_positions}
            return self.mixer.attend_cached(x, key, value, mask=mask, **kwargs)

        x = self.mixer_residual(x, mix, train=False)
        x = self.feed_forward_residual(x, lambda x: self.feed_forward(x, train=False), train=False)
        return x, written


class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the encoder's output, feed-forward network."""

    mixer: nn.Module
    cross_attention: nn.Module
    feed_forward: nn.Module
    residual: Callable[[], nn.Module] = Residual

    def setup(self) -> None:
        self.mixer_residual = self.residual()
        self.cross_attention_residual = self.residual()
        self.feed_forward_residual = self.residual()

    def __call__(
        self,
        x: jax.Array,
        memory: jax.Array,
        *,
        mask: jax.Array | None,
        memory_mask: jax.Array | None,
        positions: jax.Array | None = None,
        memory_positions: jax.Array | None = None,
        train: bool,
    ) -> jax.Array:
        """x [B, L, D], memory [B, M, D], mask [B, 1, L, L], memory_mask [B, 1, 1 or L, M] -> [B, L, D].

        positions are those of x, [B, L] or [L], and memory_positions those of memory.
        """

        def mix(x):
            kwargs = {"positions": positions, "memory_positions": positions}
            return self.mixer(x, x, mask=mask, **kwargs, train=train)

        def attend(x):
            kwargs = {"positions": positions, "memory_positions": memory_positions}
            return self.cross_attention(x, memory, mask=memory_mask, **kwargs, train=train)

        x = self.mixer_residual(x, mix, train=train)
        x = self.cross_attention_residual(x, attend, train=train)
        return self.feed_forward_residual(x, lambda x: self.feed_forward(x, train=train), train=train)

    def init_cache(self, memory: jax.Array, width: int, max_length: int) -> LayerCache:
        """The layer's part of a decoding cache for memory [B, M, D]."""
        positions = jnp.arange(memory.shape[1])
        with activations.intercept(None):  # for their shapes alone
            own = self.mixer.keys_values(memory[:, :1], positions[:1])
        return LayerCache.empty(own, self.cross_attention.keys_values(memory, positions), width, max_length)

    def decode_step(
        self, x: jax.Array, cache: LayerCache, position: jax.Array, *, mask: jax.Array, memory_mask: jax.Array
    ) -> tuple[jax.Array, LayerCache]:
        """One position of W hypotheses: x [B, W, D] and the cache -> ([B, W, D], cache).

        The hypotheses of a batch row are on the axis that `__call__` has for query positions: they share its
        encoder output and a pool of cached positions, of which mask [B, 1, W, T * W] selects each one's own.
        """
        positions = jnp.full(x.shape[1], position)

        def mix(x):
            nonlocal cache
            cache = cache.write(position, *self.mixer.keys_values(x, positions))
            kwargs = {"positions": positions, "memory_positions": cache.positions(x.shape[1])}
            return self.mixer.attend_cached(x, cache.key, cache.value, mask=mask, **kwargs)

        def attend(x):
            memory = cache.memory_key, cache.memory_value
            kwargs = {"positions": positions, "memory_positions": cache.memory_positions}
            return self.cross_attention.attend_cached(x, *memory, mask=memory_mask, **kwargs)

        x = self.mixer_residual(x, mix, train=False)
        x = self.cross_attention_residual(x, attend, train=False)
        x = self.feed_forward_residual(x, lambda x: self.feed_forward(x, train=False), train=False)
        return x, cache
