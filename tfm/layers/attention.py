"""Multi-head attention (section 3.2.2), and the protocol of modules that replace it.

Shape letters as in `tfm.layers`.
"""

import functools
from collections.abc import Callable
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from tfm.attention import (
    attention_logits,
    dot_product_attention,
    infer_attention_weights,
    masked_softmax,
    weighted_sum,
)
from tfm.dropout import dropout
from tfm.layers import activations
from tfm.layers.dense import KERNEL_INIT, dense, scale_initializer
from tfm.layers.parameter_axes import declare_axes

RestrictMask = Callable[[jax.Array | None, jax.Array, jax.Array], jax.Array]


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
      key_value_heads: G, heads of keys and values, which divides H; H / G heads of queries share each one
        (grouped-query attention, Ainslie et al. 2023; 1 is multi-query attention, Shazeer 2019). H when None.
      use_bias: biases on the four projections (none in the paper, present in its authors' code).
      dropout_rate: of the attention weights (0 in the paper).
      attention: a function of query [B, L, H, K], key [B, M, H, K], value [B, M, H, V] and mask= to
        [B, L, H, V], such as `tfm.attention.dot_product_attention`. It also gets dropout_rate= and
        dropout_rng= where weights are dropped, scale= where `scale` is given, and bias= [.., H, L, M] where
        there is a `position_bias`.
      implementation: None, or what `attention` gets as implementation=, except in cached decoding, whose few
        queries do not suit a fused kernel.
      encode_positions: None, or a function that encodes positions in queries and keys, as rotary ones do:
        (x [B, L, H, K], positions [B, L] or [L]) -> [B, L, H, K].
      position_bias: None, or a function, perhaps a module, of what is added to the logits: (query
        [B, L, H, K], positions of queries and of keys, each [B, ...] or [...]) -> [H, L, M] or [B, H, L, M].
        The query is already multiplied by the scale of the logits.
      restrict_mask: None, or a function that excludes further keys by their positions: (mask, positions of
        queries and of keys) -> a mask like it, of one row for each query.
      scale: factor of the logits; K ** -0.5 when None, as in the paper.
      dtype: compute dtype; parameters are float32.
      kernel_init, output_init: initializers of the kernels of query, key and value, and of the output's.
      value_init: of the values' kernel, where it is another than `kernel_init`.
    """

    features: int
    heads: int
    key_features: int | None = None
    value_features: int | None = None
    key_value_heads: int | None = None
    use_bias: bool = False
    dropout_rate: float = 0.0
    attention: Callable[..., jax.Array] = dot_product_attention
    implementation: str | None = None
    encode_positions: Callable[[jax.Array, jax.Array], jax.Array] | None = None
    position_bias: Callable[[jax.Array, jax.Array, jax.Array], jax.Array] | None = None
    restrict_mask: RestrictMask | None = None
    scale: float | None = None
    dtype: DTypeLike = jnp.float32
    kernel_init: Initializer = KERNEL_INIT
    output_init: Initializer = KERNEL_INIT
    value_init: Initializer | None = None

    def setup(self) -> None:
        if None in (self.key_features, self.value_features) and self.features % self.heads:
            raise ValueError(f"features {self.features} do not divide into {self.heads} heads")
        key_features = self.key_features or self.features // self.heads
        value_features = self.value_features or self.features // self.heads
        own_heads = self.key_value_heads or self.heads
        if self.heads % own_heads:
            raise ValueError(f"{self.heads} heads do not divide into {own_heads} heads of keys and values")
        self.query = self._projection((self.heads, key_features), -1, self.kernel_init)
        self.key = self._projection((own_heads, key_features), -1, self.kernel_init)
        self.value = self._projection((own_heads, value_features), -1, self.value_init or self.kernel_init)
        self.output = self._projection(self.features, (-2, -1), self.output_init)

    def _projection(self, features, axis, init):
        return dense(features, axis, use_bias=self.use_bias, kernel_init=init, dtype=self.dtype)

    @nn.nowrap
    def scale_initialization(self, factor: float) -> "MultiHeadAttention":
        """A copy whose kernels of values and output begin `factor` times as large, as in DeepNorm."""
        value_init = scale_initializer(self.value_init or self.kernel_init, factor)
        return self.clone(value_init=value_init, output_init=scale_initializer(self.output_init, factor))

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
        options: dict[str, Any] = {}
        if self.implementation is not None:
            options["implementation"] = self.implementation
        if train and self.dropout_rate:
            options |= {"dropout_rate": self.dropout_rate, "dropout_rng": self.make_rng("dropout")}
        return self._attend(query, key, value, mask, positions, memory_positions, **options)

    def keys_values(
        self, memory: jax.Array, positions: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """[B, M, D] -> keys [B, M, G, K] and values [B, M, G, V]; a decoder caches them."""
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
        """x [B, W, D] attends to key [B, G, K, M] and value [B, G, M, V], with the axes of a `LayerCache`."""
        query = self._make_query(x, positions)
        key, value = key.transpose(0, 3, 1, 2), value.swapaxes(1, 2)
        return self._attend(query, key, value, mask, positions, memory_positions)

    def _make_query(self, x, positions):
        query = self._encode_positions(self.query(x), positions)
        return activations.observe(self, "query", query, "BLHK", positions=positions)

    def _attend(self, query, key, value, mask, positions, memory_positions, **options):
        """The output [B, L, D]; `options` are those of the attention function."""
        key, value = self._share_heads(key), self._share_heads(value)
        mask = self._restrict(mask, query, key, positions, memory_positions)
        terms = self._logit_terms(query, key, positions, memory_positions)
        if activations.is_wanted(self, "logits", "weights"):
            options |= {"terms": terms, "memory_positions": memory_positions}
            heads = self._attend_by_weights(query, key, value, mask, **options)
        else:
            heads = self.attention(query, key, value, mask=mask, **terms, **options)
        return self.output(activations.observe(self, "head_outputs", heads, "BLHV"))

    def _attend_by_weights(
        self, query, key, value, mask, *, terms, memory_positions, dropout_rate=0.0, dropout_rng=None, **_
    ):
        """`self.attention` in steps, between which logits and weights are observed."""
        observe = functools.partial(activations.observe, self, axes="BHLM", memory_positions=memory_positions)
        if self.attention is dot_product_attention:
            logits = observe("logits", attention_logits(query, key, **terms))
            weights = masked_softmax(logits, mask).astype(query.dtype)
        else:
            reason = "the attention function is not tfm.attention.dot_product_attention and keeps its logits"
            activations.explain_absence(self, "logits", reason)
            weights = infer_attention_weights(self.attention, query, key, mask=mask, **terms)
        weights = observe("weights", weights)
        return weighted_sum(dropout(dropout_rng, weights, dropout_rate), value)

    def _share_heads(self, x):
        """Keys or values [B, M, G, ...] -> [B, M, H, ...], each for H / G neighbouring heads."""
        shared = self.heads // x.shape[-2]
        return x if shared == 1 else jnp.repeat(x, shared, axis=-2)

    def _restrict(self, mask, query, key, positions, memory_positions):
        if self.restrict_mask is None:
            return mask
        return self.restrict_mask(mask, _or_index(positions, query), _or_index(memory_positions, key))

    def _logit_terms(self, query, key, positions, memory_positions):
        """The options of the attention function that change its logits."""
        terms = {} if self.scale is None else {"scale": self.scale}
        if self.position_bias is None:
            return terms
        scale = query.shape[-1] ** -0.5 if self.scale is None else self.scale
        where = _or_index(positions, query), _or_index(memory_positions, key)
        return terms | {"bias": self.position_bias(query * scale, *where)}

    def _encode_positions(self, x, positions):
        if self.encode_positions is None:
            return x
        return self.encode_positions(x, _or_index(positions, x))


def _or_index(positions, x):
    """The given positions, or 0, 1, 2, ... of x [B, L, H, K]."""
    return jnp.arange(x.shape[-3]) if positions is None else positions
