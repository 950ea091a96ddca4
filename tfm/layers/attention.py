"""Multi-head attention (section 3.2.2), and the protocol of modules that replace it.

Shape letters as in `tfm.layers`.
"""

import functools
from collections.abc import Callable
from typing import Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from tfm.attention import (
    attention_logits,
    dot_product_attention,
    masked_softmax,
    weighted_sum,
    weights_of,
)
from tfm.dropout import dropout
from tfm.layers import activations
from tfm.layers.dense import KERNEL_INIT, dense
from tfm.layers.parameter_axes import declare_axes


class Mixer(Protocol):
    """A module that mixes the features of positions: attention, or a replacement of it.

    `MultiHeadAttention` is one. A layer calls it with all the arguments below; a mixer may take those that it
    does not use as **keywords. Positions are integers within the segment, [B, L] or [L], and None only where
    the caller of the layer gave none. A decoder also needs `keys_values` and `attend_cached`, which together
    compute what `__call__` computes, one position at a time.
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
        """The arrays to cache for memory [B, M, D]: [B, M, H, K] and [B, M, H, V], of any H, K and V."""

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
        """x [B, W, D] of W hypotheses attends to cached keys and values -> [B, W, D].

        key [B, H, K, M] and value [B, H, M, V] have the axes of a `LayerCache`, where M may be the slots of
        a pool that all hypotheses share: mask [B, 1, 1 or W, M] selects those of each one.
        """


@declare_axes(
    {
        **{f"{name}/kernel": ("model", "heads", "features") for name in ("query", "key", "value")},
        **{f"{name}/bias": ("heads", "features") for name in ("query", "key", "value")},
        "output/kernel": ("heads", "features", "model"),
    }
)
class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O, section 3.2.2.

    Attributes:
      features: D, of the output.
      heads: H.
      key_features, value_features: K and V of each head; each D / H when None, as in the paper.
      use_bias: biases on the four projections (none in the paper, present in its authors' code).
      dropout_rate: of the attention weights (0 in the paper).
      attention: a function of query [B, L, H, K], key [B, M, H, K], value [B, M, H, V] and mask= to
        [B, L, H, V], such as `tfm.attention.dot_product_attention`. It also gets dropout_rate= and
        dropout_rng= where weights are dropped.
      implementation: None, or what `attention` gets as implementation=, except in cached decoding, whose few
        queries do not suit a fused kernel.
      encode_positions: None, or a function that encodes positions in queries and keys, as rotary ones do:
        (x [B, L, H, K], positions [B, L] or [L]) -> [B, L, H, K].
      dtype: compute dtype; parameters are float32.
      kernel_init, output_init: initializers of the kernels of query, key and value, and of the output's.

    With the collection "attention" mutable it stores its weights [B, H, L, M] there.
    """

    features: int
    heads: int
    key_features: int | None = None
    value_features: int | None = None
    use_bias: bool = False
    dropout_rate: float = 0.0
    attention: Callable[..., jax.Array] = dot_product_attention
    implementation: str | None = None
    encode_positions: Callable[[jax.Array, jax.Array], jax.Array] | None = None
    dtype: jnp.dtype = jnp.float32
    kernel_init: Initializer = KERNEL_INIT
    output_init: Initializer = KERNEL_INIT

    def setup(self) -> None:
        if None in (self.key_features, self.value_features) and self.features % self.heads:
            raise ValueError(f"features {self.features} do not divide into {self.heads} heads")
        key_features = self.key_features or self.features // self.heads
        value_features = self.value_features or self.features // self.heads
        self.query = self._projection((self.heads, key_features), -1, self.kernel_init)
        self.key = self._projection((self.heads, key_features), -1, self.kernel_init)
        self.value = self._projection((self.heads, value_features), -1, self.kernel_init)
        self.output = self._projection(self.features, (-2, -1), self.output_init)

    def _projection(self, features, axis, init):
        return dense(features, axis, use_bias=self.use_bias, kernel_init=init, dtype=self.dtype)

    def __call__(
        self,
        x: jax.Array,
        memory: jax.Array,
        *,
        mask: jax.Array | None,
        positions: jax.Array | None = None,
        memory_positions: jax.Array | None = None,
        train: bool,
    ) -> jax.Array:
        """x [B, L, D] attends to memory [B, M, D] under mask [B, 1 or H, L, M] -> [B, L, D].

        The positions of x [B, L] or [L] and of memory [B, M] or [M] are 0, 1, 2, ... when None.
        """
        key, value = self.keys_values(memory, memory_positions)
        query = self._make_query(x, positions)
        options = {}
        if self.implementation is not None:
            options["implementation"] = self.implementation
        if train and self.dropout_rate:
            options |= {"dropout_rate": self.dropout_rate, "dropout_rng": self.make_rng("dropout")}
        return self._attend(query, key, value, mask, memory_positions, **options)

    def keys_values(
        self, memory: jax.Array, positions: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """[B, M, D] -> keys [B, M, H, K] and values [B, M, H, V]; a decoder caches them."""
        key, value = self._encode_positions(self.key(memory), positions), self.value(memory)
        key = activations.observe(self, "key", key, "BMHK", memory_positions=positions)
        return key, activations.observe(self, "value", value, "BMHV", memory_positions=positions)

    def attend_cached(
        self,
        x: jax.Array,
        key: jax.Array,
        value: jax.Array,
        *,
        mask: jax.Array | None,
        positions: jax.Array | None = None,
        memory_positions: jax.Array | None = None,
    ) -> jax.Array:
        """x [B, W, D] attends to key [B, H, K, M] and value [B, H, M, V], with the axes of a `LayerCache`."""
        query = self._make_query(x, positions)
        key, value = key.transpose(0, 3, 1, 2), value.swapaxes(1, 2)
        return self._attend(query, key, value, mask, memory_positions)

    def _make_query(self, x, positions):
        query = self._encode_positions(self.query(x), positions)
        return activations.observe(self, "query", query, "BLHK", positions=positions)

    def _attend(self, query, key, value, mask, memory_positions, **options):
        """The output [B, L, D]; `options` are those of the attention function."""
        if activations.is_wanted(self, "logits", "weights"):
            heads = self._attend_by_weights(query, key, value, mask, memory_positions, **options)
        else:
            if self._stores_weights:
                self.sow("attention", "weights", weights_of(self.attention, query, key, mask=mask))
            heads = self.attention(query, key, value, mask=mask, **options)
        return self.output(activations.observe(self, "head_outputs", heads, "BLHV"))

    def _attend_by_weights(
        self, query, key, value, mask, memory_positions, dropout_rate=0.0, dropout_rng=None, **_
    ):
        """`self.attention` in steps, between which logits and weights are observed."""
        observe = functools.partial(activations.observe, self, axes="BHLM", memory_positions=memory_positions)
        if self.attention is dot_product_attention:
            logits = observe("logits", attention_logits(query, key))
            weights = masked_softmax(logits, mask).astype(query.dtype)
        else:
            reason = "the attention function is not tfm.attention.dot_product_attention and keeps its logits"
            activations.explain_absence(self, "logits", reason)
            weights = weights_of(self.attention, query, key, mask=mask)
        weights = observe("weights", weights)
        if self._stores_weights:
            self.sow("attention", "weights", weights)
        return weighted_sum(dropout(dropout_rng, weights, dropout_rate), value)

    def _encode_positions(self, x, positions):
        if self.encode_positions is None:
            return x
        positions = jnp.arange(x.shape[-3]) if positions is None else positions
        return self.encode_positions(x, positions)

    @property
    def _stores_weights(self):
        return self.is_mutable_collection("attention") and not self.is_initializing()
