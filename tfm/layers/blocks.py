"""The blocks of section 3.1: encoder and decoder layer, and a stack of either.

Shape letters as of `tfm.layers`.
"""

import inspect
from collections.abc import Callable
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers.kv_cache import LayerCache
from tfm.layers.sublayers import Residual


class Mixer(Protocol):
    """What stands in the place of attention: a module that mixes the features of positions.

    `MultiHeadAttention` is one. A layer calls it with all the arguments below; what has no use for some may
    take them as **keywords. Positions are integers within the sentence, [B, L] or [L], and None only where
    the caller of the layer gave none. A decoder also needs `keys_values` and `attend_cached`, which together
    give what `__call__` gives, one position at a time.
    """

    def __call__(
        self,
        x: jax.Array,
        memory: jax.Array,
        *,
        mask: jax.Array | None,
        positions: jax.Array | None,
        memory_positions: jax.Array | None,
        train: bool,
    ) -> jax.Array:
        """x [B, L, D], memory [B, M, D] (x itself in self-attention), mask [B, 1 or H, L, M] -> [B, L, D]."""

    def keys_values(self, memory: jax.Array, positions: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        """What is cached of memory [B, M, D]: two arrays [B, M, H, K] and [B, M, H, V], of any H, K and V."""

    def attend_cached(
        self,
        x: jax.Array,
        key: jax.Array,
        value: jax.Array,
        *,
        mask: jax.Array | None,
        positions: jax.Array | None,
        memory_positions: jax.Array | None,
    ) -> jax.Array:
        """x [B, W, D] of W hypotheses against what is cached -> [B, W, D].

        key [B, H, K, M] and value [B, H, M, V] are laid out as in a `LayerCache`, where M may be the slots
        of a pool that all hypotheses share: mask [B, 1, 1 or W, M] picks those of each one.
        """


class ComposedModule(nn.Module):
    """A module whose methods `make_...` return its parts, so that a subclass replaces one by overriding it.

    Linen makes a module the child of the one whose method runs. These methods are not wrapped for that: what
    they return belongs to the module that calls them, which may be a part itself.
    """

    def __init_subclass__(cls, **keywords: Any):
        for name, method in vars(cls).items():
            if name.startswith("make_") and inspect.isfunction(method):
                nn.nowrap(method)
        super().__init_subclass__(**keywords)


class EncoderLayer(nn.Module):
    """Self-attention (or another mixer), then the feed-forward network, each in a residual connection."""

    mixer: nn.Module
    feed_forward: nn.Module
    residual: Callable[[], Residual] = Residual

    def setup(self):
        self.mixer_residual = self.residual()
        self.feed_forward_residual = self.residual()

    def __call__(
        self, x: jax.Array, *, mask: jax.Array | None, positions: jax.Array | None = None, train: bool
    ) -> jax.Array:
        """x [B, L, D], mask [B, 1, L, L] or broadcastable, positions [B, L] or [L] -> [B, L, D]."""

        def mix(x):
            where = {"positions": positions, "memory_positions": positions}
            return self.mixer(x, x, mask=mask, **where, train=train)

        x = self.mixer_residual(x, mix, train=train)
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
            where = {"positions": positions, "memory_positions": positions}
            return self.mixer(x, x, mask=mask, **where, train=train)

        def attend(x):
            where = {"positions": positions, "memory_positions": memory_positions}
            return self.cross_attention(x, memory, mask=memory_mask, **where, train=train)

        x = self.mixer_residual(x, mix, train=train)
        x = self.cross_attention_residual(x, attend, train=train)
        return self.feed_forward_residual(x, lambda x: self.feed_forward(x, train=train), train=train)

    def init_cache(self, memory: jax.Array, width: int, length: int) -> LayerCache:
        """The layer's part of a decoding cache for memory [B, M, D]."""
        positions = jnp.arange(memory.shape[1])
        own = self.mixer.keys_values(memory[:, :1], positions[:1])  # for their shapes alone
        return LayerCache.empty(own, self.cross_attention.keys_values(memory, positions), width, length)

    def decode_step(
        self, x: jax.Array, cache: LayerCache, position: jax.Array, *, mask: jax.Array, memory_mask: jax.Array
    ) -> tuple[jax.Array, LayerCache]:
        """One position of W hypotheses: x [B, W, D] and the cache -> ([B, W, D], cache).

        The hypotheses of a sentence stand where `__call__` has query positions: they share its encoder output
        and one pool of cached positions, in which mask [B, 1, W, T * W] picks each one's own ancestors.
        """
        positions = jnp.full(x.shape[1], position)

        def mix(x):
            nonlocal cache
            cache = cache.write(position, *self.mixer.keys_values(x, positions))
            where = {"positions": positions, "memory_positions": cache.positions(x.shape[1])}
            return self.mixer.attend_cached(x, cache.key, cache.value, mask=mask, **where)

        def attend(x):
            memory = cache.memory_key, cache.memory_value
            where = {"positions": positions, "memory_positions": cache.memory_positions}
            return self.cross_attention.attend_cached(x, *memory, mask=memory_mask, **where)

        x = self.mixer_residual(x, mix, train=False)
        x = self.cross_attention_residual(x, attend, train=False)
        x = self.feed_forward_residual(x, lambda x: self.feed_forward(x, train=False), train=False)
        return x, cache


class Stack(nn.Module):
    """`depth` layers from `make_layer`; a final norm for norm orders that leave the sum as it is.

    Attributes:
      make_layer: makes one layer.
      depth: N.
      final_norm: makes the norm that it ends in; None for none.
      remat: the backward pass computes a layer's activations again instead of keeping them: memory for time.
      scan: one compiled layer runs N times, instead of N being compiled: compiles sooner. The parameters are
        those of the layers, whatever this says.
    """

    make_layer: Callable[[], nn.Module]
    depth: int
    final_norm: Callable[[], nn.Module] | None = None
    remat: bool = False
    scan: bool = False

    def setup(self):
        self.layers = [self.make_layer() for _ in range(self.depth)]
        self.norm = self.final_norm() if self.final_norm else lambda x: x

    def __call__(self, x: jax.Array, *arguments: Any, train: bool, **keywords: Any) -> jax.Array:
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

    def init_cache(self, memory: jax.Array, width: int, length: int) -> list[LayerCache]:
        """A list of the layers' caches."""
        return [layer.init_cache(memory, width, length) for layer in self.layers]

    def decode_step(
        self, x: jax.Array, caches: list[LayerCache], position: jax.Array, **masks: jax.Array
    ) -> tuple[jax.Array, list[LayerCache]]:
        """x [B, W, D] and the list of caches -> ([B, W, D], caches)."""
        written = []
        for layer, cache in zip(self.layers, caches, strict=True):
            x, cache = layer.decode_step(x, cache, position, **masks)
            written.append(cache)
        return self.norm(x), written
