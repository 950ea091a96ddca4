"""The blocks of section 3.1: encoder and decoder layer, and a stack of either.

Shape letters as of `tfm.layers`.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.decode_cache import LayerCache
from tfm.layers.sublayers import Residual, layer_norm


class EncoderLayer(nn.Module):
    """Self-attention (or another mixer), then the feed-forward network, each in a residual connection."""

    mixer: nn.Module
    feed_forward: nn.Module
    residual: Callable[[], Residual] = Residual

    def setup(self):
        self.mixer_residual = self.residual()
        self.feed_forward_residual = self.residual()

    def __call__(self, x, *, mask, train):
        """x [B, L, D], mask [B, 1, L, L] or broadcastable -> [B, L, D]."""
        x = self.mixer_residual(x, lambda x: self.mixer(x, x, mask=mask, train=train), train=train)
        return self.feed_forward_residual(x, lambda x: self.feed_forward(x, train=train), train=train)


class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the encoder's output, feed-forward network."""

    mixer: nn.Module
    cross_attention: nn.Module
    feed_forward: nn.Module
    residual: Callable[[], Residual] = Residual

    def setup(self):
        self.mixer_residual = self.residual()
        self.cross_attention_residual = self.residual()
        self.feed_forward_residual = self.residual()

    def __call__(self, x, memory, *, mask, memory_mask, train):
        """x [B, L, D], memory [B, M, D], mask [B, 1, L, L], memory_mask [B, 1, 1 or L, M] -> [B, L, D]."""
        x = self.mixer_residual(x, lambda x: self.mixer(x, x, mask=mask, train=train), train=train)
        x = self.cross_attention_residual(
            x, lambda x: self.cross_attention(x, memory, mask=memory_mask, train=train), train=train
        )
        return self.feed_forward_residual(x, lambda x: self.feed_forward(x, train=train), train=train)

    def init_cache(self, memory, width, length):
        """The layer's part of a decoding cache, a `LayerCache`."""
        return LayerCache.empty(*self.cross_attention.keys_values(memory), width, length)

    def decode_step(self, x, cache, position, *, mask, memory_mask):
        """One position of W hypotheses: x [B, W, D] and the cache -> ([B, W, D], cache).

        The hypotheses of a sentence stand where `__call__` has query positions: they share its encoder output
        and one pool of cached positions, in which mask [B, 1, W, T * W] picks each one's own ancestors.
        """

        def self_attention(x):
            nonlocal cache
            cache = cache.write(position, *self.mixer.keys_values(x))
            return self.mixer.attend_cached(x, cache.key, cache.value, mask=mask)

        def cross_attention(x):
            memory = cache.memory_key, cache.memory_value
            return self.cross_attention.attend_cached(x, *memory, mask=memory_mask)

        x = self.mixer_residual(x, self_attention, train=False)
        x = self.cross_attention_residual(x, cross_attention, train=False)
        x = self.feed_forward_residual(x, lambda x: self.feed_forward(x, train=False), train=False)
        return x, cache


class Stack(nn.Module):
    """`depth` layers from `make_layer`; a final LayerNorm for norm orders that leave the sum as it is.

    Attributes:
      make_layer: makes one layer.
      depth: N.
      final_norm: ends in a LayerNorm.
      remat: the backward pass computes a layer's activations again instead of keeping them: memory for time.
      scan: one compiled layer runs N times, instead of N being compiled: compiles sooner. The parameters are
        those of the layers, whatever this says.
      dtype: compute dtype.
    """

    make_layer: Callable[[], nn.Module]
    depth: int
    final_norm: bool = False
    remat: bool = False
    scan: bool = False
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        self.layers = [self.make_layer() for _ in range(self.depth)]
        self.norm = layer_norm(self.dtype) if self.final_norm else lambda x: x

    def __call__(self, x, *arguments, train, **keywords):
        """x [B, L, D] -> [B, L, D]; everything else is handed to each layer."""
        plain = self.is_initializing() or self.is_mutable_collection("attention")
        if self.scan and not plain:
            return self.norm(self._scanned(x, arguments, keywords | {"train": train}))

        def call(layer, x):
            return layer(x, *arguments, train=train, **keywords)

        for layer in self.layers:
            x = nn.remat(call)(layer, x) if self.remat and not plain else call(layer, x)
        return self.norm(x)

    def _scanned(self, x, arguments, keywords):
        layer, _ = self.layers[0].unbind()
        params = [layer.variables["params"] for layer in self.layers]
        keys = None
        if keywords["train"] and self.has_rng("dropout"):
            keys = jax.random.split(self.make_rng("dropout"), self.depth)

        def call(x, params_and_key):
            params, key = params_and_key
            rngs = None if key is None else {"dropout": key}
            return layer.apply({"params": params}, x, *arguments, rngs=rngs, **keywords), None

        call = jax.checkpoint(call) if self.remat else call
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *params)
        return jax.lax.scan(call, x, (stacked, keys))[0]

    def init_cache(self, memory, width, length):
        """A list of the layers' caches."""
        return [layer.init_cache(memory, width, length) for layer in self.layers]

    def decode_step(self, x, caches, position, **masks):
        """x [B, W, D] and the list of caches -> ([B, W, D], caches)."""
        written = []
        for layer, cache in zip(self.layers, caches, strict=True):
            x, cache = layer.decode_step(x, cache, position, **masks)
            written.append(cache)
        return self.norm(x), written
