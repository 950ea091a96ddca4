"""A stack of equal layers: the encoder or the decoder (section 3.1).

Shape letters as in `tfm.layers`.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers import activations
from tfm.layers.kv_cache import KeyValueCache


class Stack(nn.Module):
    """`depth` layers from `make_layer`, and a final norm for norm orders that do not normalize the sum.

    Attributes:
      make_layer: makes one layer.
      depth: N.
      final_norm: makes the norm of the output; None for none.
      remat: the backward pass recomputes a layer's activations instead of storing them: memory for time.
      scan: one compiled layer runs N times, instead of N being compiled: compiles faster. The parameter tree
        is the same either way.
    """

    make_layer: Callable[[], nn.Module]
    depth: int
    final_norm: Callable[[], nn.Module] | None = None
    remat: bool = False
    scan: bool = False

    def setup(self) -> None:
        self.layers = [self.make_layer() for _ in range(self.depth)]
        self.norm = self.final_norm() if self.final_norm else lambda x: x

    def __call__(self, x: jax.Array, *arguments: Any, train: bool, **keywords: Any) -> jax.Array:
        """x [B, L, D] -> [B, L, D]; all other arguments are passed to each layer."""
        # What is read of a layer cannot leave a scan or a recomputation.
        plain = self.is_initializing() or activations.is_active()
        if self.scan and not plain:
            return self.norm(self._scanned(x, arguments, keywords | {"train": train}))

        def call(layer, x):
            return layer(x, *arguments, train=train, **keywords)

        with activations.at_positions(keywords.get("positions")):
            for layer in self.layers:
                x = nn.remat(call)(layer, x) if self.remat and not plain else call(layer, x)
            return activations.observe(self, "output", self.norm(x))

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

    def init_cache(self, memory: jax.Array, width: int, max_length: int) -> list[KeyValueCache]:
        """A list of the layers' caches."""
        return [layer.init_cache(memory, width, max_length) for layer in self.layers]

    def decode_step(
        self, x: jax.Array, caches: list[KeyValueCache], position: jax.Array, **masks: jax.Array
    ) -> tuple[jax.Array, list[KeyValueCache]]:
        """x [B, W, D] and the list of caches -> ([B, W, D], caches)."""
        written = []
        with activations.at_positions(masks.get("positions", position)):
            for layer, cache in zip(self.layers, caches, strict=True):
                x, cache = layer.decode_step(x, cache, position, **masks)
                written.append(cache)
            return activations.observe(self, "output", self.norm(x)), written

    def prefill(self, x: jax.Array, caches: list[KeyValueCache], **masks: jax.Array) -> list[KeyValueCache]:
        """Of `CausalLayer`: x [B, P, D] and the list of caches -> caches, x in their prefix."""
        written = []
        with activations.at_positions(masks["positions"]):
            for layer, cache in zip(self.layers, caches, strict=True):
                x, cache = layer.prefill(x, cache, **masks)
                written.append(cache)
        return written
