"""Multi-head attention (section 3.2.2).

Shape letters as in `tfm.layers`. G is the number of heads of keys and values.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from tfm.attention import (
    attention_logits,
    dot_product_attention,
    infer_attention_weights,
    masked_softmax,
    weighted_sum,
)
from tfm.attention_kernels import AnyMask, choose_implementation, unsupported_reason
from tfm.dropout import dropout
from tfm.errors import UserError
from tfm.layers.dense import KERNEL_INIT, dense, scale_initializer
from tfm.layers.observe import explain_missing, is_wanted, observe
from tfm.masks import mask_to_array, restrict_to_window

RestrictMask = Callable[[Array | None, Array, Array], Array | None]
log_once = functools.cache(logging.getLogger(__name__).info)


class MultiHeadAttention(nn.Module):
    """Multi-head attention, MultiHead(Q, K, V) = Concat(head_1, ..., head_H) W^O (section 3.2.2).

    Another module can replace it in a layer if its `__call__` accepts the same arguments. Arguments that it
    does not use can be accepted as **_. In a decoder, it also needs `keys_values` and `attend_cached`. Called
    for one position after the other, the two methods must compute the outputs of one `__call__` for all
    positions. H, K and V of the cached arrays are free.

    Attributes:
      features: Width of the output, D.
      heads: Number of query heads, H.
      key_features, value_features: Width of each head's keys and values, K and V. None means D / H.
      key_value_heads: Number of key and value heads, G. H / G query heads share each of them. With 1 this is
        multi-query attention (Shazeer 2019), with more it is grouped-query attention (Ainslie et al. 2023).
        None means H.
      use_bias: Whether the projections have biases. The paper has none, but its authors' code does.
      dropout_rate: Dropout rate of the attention weights.
      attention: Function that maps query [B, L, H, K], key [B, M, H, K], value [B, M, H, V] and the keyword
        mask to [B, L, H, V], or a module that does. The keywords scale, bias, implementation, dropout_rate
        and dropout_rng are passed only if they are set. Cached decoding passes a single query position and
        all places of the cache, so an index is no position. A rule about positions belongs in
        `restrict_mask` or `position_bias`, or needs `attention_encodes_positions`. The output must be linear
        in the values, because reading the weights relies on this. Everything else belongs in
        `transform_heads`.
      attention_encodes_positions: Whether `attention` encodes positions itself. It then receives queries and
        keys before `encode_positions`, which is ignored, and the keywords positions, int [B, L] or [L], and
        key_positions, int [B, M] or [M]. Otherwise, the queries and keys of each head are already encoded.
      transform_heads: Function or module that changes the outputs of the heads before the output projection,
        such as a gate or a norm: (heads [B, L, H, V], x [B, L, D]) -> array like heads, where x is the input
        of the query projection.
      implementation: Implementation of `dot_product_attention`. "auto" is a choice, see
        `tfm.attention_kernels`. Cached decoding always computes the equation.
      encode_positions: Function that encodes positions in queries and keys, such as rotary encoding:
        (x [B, L, H, K], positions) -> array like x.
      position_bias: Function or module that computes a term of the logits from positions (ALiBi, T5, Shaw):
        (query times the scale of the logits, query positions, key positions) -> [H, L, M] or [B, H, L, M].
      window: Number of positions around each query that it sees, see `tfm.masks.local_mask`. None means all.
      restrict_mask: Function that masks further keys, for example all but the first: (mask, query positions,
        key positions) -> mask. The masks are booleans or None.
      scale: Factor of the logits. None means K ** -0.5.
      dtype: Compute dtype. Parameters are float32.
      kernel_init, output_init: Initializers of the query, key and value kernels, and of the output kernel.
      init_scale: Factor of the initial value and output kernels, beta of DeepNorm.
      make_dense: Function that returns one of the four projections. It is called like
        `tfm.layers.dense.dense`.
    """

    features: int
    heads: int
    key_features: int | None = None
    value_features: int | None = None
    key_value_heads: int | None = None
    use_bias: bool = False
    dropout_rate: float = 0.0
    attention: Callable[..., Array] = dot_product_attention
    attention_encodes_positions: bool = False
    transform_heads: Callable[[Array, Array], Array] | None = None
    implementation: str | None = None
    encode_positions: Callable[[Array, Array], Array] | None = None
    position_bias: Callable[[Array, Array, Array], Array] | None = None
    window: int | None = None
    restrict_mask: RestrictMask | None = None
    scale: float | None = None
    dtype: DTypeLike = jnp.float32
    kernel_init: Initializer = KERNEL_INIT
    output_init: Initializer = KERNEL_INIT
    init_scale: float = 1.0
    make_dense: Callable[..., nn.Module] = dense
    parameter_axes: ClassVar = {
        **{f"{name}/kernel": ("model", "heads", "features") for name in ("query", "key", "value")},
        **{f"{name}/bias": ("heads", "features") for name in ("query", "key", "value")},
        "output/kernel": ("heads", "features", "model"),
    }

    def setup(self) -> None:
        groups = self.key_value_heads or self.heads
        if None in (self.key_features, self.value_features) and self.features % self.heads:
            raise ValueError(f"Expected heads to divide features ({self.features}), got {self.heads}.")
        if self.heads % groups:
            raise ValueError(f"Expected key_value_heads to divide heads ({self.heads}), got {groups}.")
        key_features = self.key_features or self.features // self.heads
        value_features = self.value_features or self.features // self.heads
        value_init = scale_initializer(self.kernel_init, self.init_scale)
        output_init = scale_initializer(self.output_init, self.init_scale)
        project = functools.partial(self.make_dense, use_bias=self.use_bias, dtype=self.dtype)
        self.query = project((self.heads, key_features), kernel_init=self.kernel_init)
        self.key = project((groups, key_features), kernel_init=self.kernel_init)
        self.value = project((groups, value_features), kernel_init=value_init)
        self.output = project(self.features, axis=(-2, -1), kernel_init=output_init)

    def __call__(
        self,
        x: Array,
        keys: Array,
        values: Array | None = None,
        *,
        mask: AnyMask,
        positions: Array | None = None,
        key_positions: Array | None = None,
        train: bool,
    ) -> Array:
        """Computes the attention of each position of `x` to the positions of `keys`.

        Args:
          x: Input of the query projection, [B, L, D].
          keys: Input of the key projection, [B, M, C] with any width C. In self-attention this is `x`.
          values: Input of the value projection, [B, M, C]. None means `keys`.
          mask: bool [B, 1 or H, L, M], or an array that broadcasts to it. True where a query may attend to a
            key. None lets every query attend to every key. An `AttentionMask` does the same faster.
          positions: Positions of the queries, int [B, L] or [L]. None means 0, 1, 2, ...
          key_positions: Positions of the keys, int [B, M] or [M]. None means 0, 1, 2, ...
          train: Whether dropout is on.

        Returns:
          [B, L, D].

        Raises:
          ValueError: If `heads` does not divide `features` and a width of the heads is None, or if
            `key_value_heads` does not divide `heads`.
          UserError: If `implementation` does not support the call.
        """
        key, value = self.keys_values(keys, key_positions, values)
        where: Any = {"mask": mask, "positions": positions, "key_positions": key_positions}
        return self.attend(x, key, value, **where, train=train)

    def attend(self, x: Array, key: Array, value: Array, *, train: bool, **where: Any) -> Array:
        """Computes the attention of x [B, L, D] to the result of `keys_values`, or to a part of it.

        The other arguments are mask, positions and key_positions, see `__call__`. Returns [B, L, D].
        """
        options: dict[str, Any] = {}
        if self.implementation is not None:
            options["implementation"] = self.implementation
        if train and self.dropout_rate:
            options |= {"dropout_rate": self.dropout_rate, "dropout_rng": self.make_rng("dropout")}
        return self._attend(x, key, value, **where, train=train, **options)

    def keys_values(
        self, keys: Array, positions: Array | None = None, values: Array | None = None
    ) -> tuple[Array, Array]:
        """Computes the keys and values that a decoder caches.

        Args:
          keys: Input of the key projection, [B, M, C].
          positions: Positions of the keys, int [B, M] or [M]. None means 0, 1, 2, ...
          values: Input of the value projection, [B, M, C]. None means `keys`.

        Returns:
          Keys [B, M, G, K] and values [B, M, G, V].
        """
        key = self._encode(self.key(keys), _or_index(positions, keys))
        key = observe(self, "key", key, "BMHK", key_positions=positions)
        value = self.value(keys if values is None else values)
        return key, observe(self, "value", value, "BMHV", key_positions=positions)

    def attend_cached(self, x: Array, key: Array, value: Array, **where: Any) -> Array:
        """Computes the attention of x [B, W, D] to cached keys [B, G, K, M] and values [B, G, M, V].

        The keys and values have the layout of a `KeyValueCache`. The other arguments are mask, positions and
        key_positions, see `__call__`, with W in place of L. Returns [B, W, D].
        """
        return self._attend(x, key.transpose(0, 3, 1, 2), value.swapaxes(1, 2), **where)

    def _attend(
        self,
        x: Array,
        key: Array,
        value: Array,
        *,
        mask: AnyMask,
        positions: Array | None = None,
        key_positions: Array | None = None,
        train: bool = False,
        **options: Any,
    ) -> Array:
        """Computes the attention of x [B, L, D] to key [B, M, G, K] and value [B, M, G, V].

        `options` are keywords for the function `attention`. Returns [B, L, D].
        """
        where = _or_index(positions, x), _or_index(key_positions, key)
        query = observe(self, "query", self._encode(self.query(x), where[0]), "BLHK", positions=positions)
        key, value = _repeat_heads(key, self.heads), _repeat_heads(value, self.heads)
        if self.window is not None:
            mask = restrict_to_window(mask, *where, window=self.window)
        if self.restrict_mask is not None:
            mask = self.restrict_mask(mask_to_array(mask, x.shape[1], key.shape[1]), *where)
        if self.scale is not None:
            options["scale"] = self.scale
        if self.position_bias is not None:
            scale = query.shape[-1] ** -0.5 if self.scale is None else self.scale
            options["bias"] = self.position_bias(query * scale, *where)
        if "implementation" in options:
            self._choose_implementation(options, query, key, value, train=train)
        if self.attention_encodes_positions:
            options |= {"positions": where[0], "key_positions": where[1]}
        observed = is_wanted(self, "logits", "weights")
        if observed or self.attention is not dot_product_attention:
            mask = mask_to_array(mask, x.shape[1], key.shape[1])
        if observed:
            report = functools.partial(observe, self, axes="BHLM", key_positions=key_positions)
            heads = self._attend_in_steps(query, key, value, mask, report, **options)
        else:
            heads = self.attention(query, key, value, mask=mask, **options)
        if self.transform_heads is not None:
            heads = self.transform_heads(observe(self, "weighted_values", heads, "BLHV"), x)
        return self.output(observe(self, "head_outputs", heads, "BLHV"))

    def _choose_implementation(self, options: dict[str, Any], *inputs: Array, train: bool) -> None:
        """Replaces "auto" in the keywords of `attention` by an implementation for query, key and value.

        Raises:
          UserError: if the implementation does not support the keywords.
        """
        if self.attention is not dot_product_attention or self.is_initializing():
            if options["implementation"] == "auto":
                del options["implementation"]
            return
        terms = {name: options[name] for name in ("bias", "dropout_rate") if name in options}
        if options["implementation"] == "auto":
            options["implementation"], reason = choose_implementation(*inputs, **terms)
            if train:
                log_once(reason)
        problem = unsupported_reason(options["implementation"], *inputs, **terms, train=train)
        if problem:
            raise UserError(f"model.attention {options['implementation']!r} {problem}. Choose 'auto'.")

    def _attend_in_steps(
        self,
        query: Array,
        key: Array,
        value: Array,
        mask: Any,
        report: Callable[[str, Array], Array],
        *,
        dropout_rate: float = 0.0,
        dropout_rng: Array | None = None,
        implementation: str | None = None,
        **terms: Any,
    ) -> Array:
        """Computes the output of `attention` in steps, so that the weights pass through `observe`.

        For `dot_product_attention`, the logits pass through `observe` too. For any other function, the
        weights are inferred from its outputs, and the output is their sum of values. A fused kernel does not
        return its weights, so `implementation` is ignored. `report` is `observe` for logits and weights. The
        terms are bias and scale of the logits, and the positions for a function that encodes them.
        """
        if self.attention is dot_product_attention:
            logits = report("logits", attention_logits(query, key, **terms))
            weights = masked_softmax(logits, mask).astype(query.dtype)
        else:
            reason = "the attention function is not tfm.attention.dot_product_attention and keeps its logits"
            explain_missing(self, "logits", reason)
            weights = infer_attention_weights(self.attention, query, key, mask=mask, **terms)
        return weighted_sum(dropout(dropout_rng, report("weights", weights), dropout_rate), value)

    def _encode(self, x: Array, positions: Array) -> Array:
        """Applies `encode_positions` to queries or keys [B, L, H, K], unless `attention` encodes them."""
        if self.encode_positions is None or self.attention_encodes_positions:
            return x
        return self.encode_positions(x, positions)


def _repeat_heads(x: Array, heads: int) -> Array:
    """Repeats each head of keys or values [B, M, G, ...] for the H / G query heads that share it."""
    return x if x.shape[2] == heads else jnp.repeat(x, heads // x.shape[2], axis=2)


def _or_index(positions: Array | None, x: Array) -> Array:
    """Returns the positions, or 0, 1, 2, ... for the second axis of `x` if they are None."""
    return jnp.arange(x.shape[1]) if positions is None else positions
