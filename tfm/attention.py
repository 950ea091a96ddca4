"""Scaled dot-product attention (section 3.2.1, equation 1) as pure functions.

Shape letters: L query length, M key length, H heads, K key features, V value features; `...` are batch axes.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Bool, Float

from tfm.array_types import Array
from tfm.dropout import dropout

IMPLEMENTATIONS = (None, "xla", "cudnn")
MAX_CUDNN_FEATURES = 256  # since Hopper; half of it before
Mask = Bool[Array, "*#batch #H #L #M"]
Bias = Float[Array, "*#batch #H #L #M"]


def attention_weights(
    query: Float[Array, "*batch L H K"],
    key: Float[Array, "*batch M H K"],
    *,
    mask: Mask | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
) -> Float[jax.Array, "*batch H L M"]:
    """softmax(Q K^T / sqrt(d_k)): how much each query attends to each key.

    Args:
      query: [..., L, H, K].
      key: [..., M, H, K].
      mask: bool, broadcastable to [..., H, L, M]; True where the query may attend.
      bias: added to the logits, broadcastable to [..., H, L, M].
      scale: factor of the logits; K ** -0.5 when None.

    Returns:
      [..., H, L, M] in the dtype of `query`. Each row sums to one; a row that may attend to nothing is all
      zeros. The softmax itself is float32, whatever the compute dtype.

    Raises:
      ValueError: a mask that is not bool, a query of integers, or a key of other heads or features.
    """
    _check_types(query, mask)
    return masked_softmax(attention_logits(query, key, bias=bias, scale=scale), mask).astype(query.dtype)


def attention_logits(
    query: Float[Array, "*batch L H K"],
    key: Float[Array, "*batch M H K"],
    *,
    bias: Bias | None = None,
    scale: float | None = None,
) -> Float[jax.Array, "*batch H L M"]:
    """Q K^T / sqrt(d_k) in float32, without the mask; arguments as in `attention_weights`.

    Raises:
      ValueError: the key has other heads or features than the query.
    """
    if query.shape[-2:] != key.shape[-2:]:
        raise ValueError(
            "query [..., L, H, K] and key [..., M, H, K] must have the same heads H and features K, got "
            f"{query.shape} and {key.shape}"
        )
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    logits = jnp.einsum("...lhk,...mhk->...hlm", query * scale, key, preferred_element_type=jnp.float32)
    return logits if bias is None else logits + bias.astype(jnp.float32)


def dot_product_attention(
    query: Float[Array, "*batch L H K"],
    key: Float[Array, "*batch M H K"],
    value: Float[Array, "*batch M H V"],
    *,
    mask: Mask | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: jax.Array | None = None,
    implementation: str | None = None,
) -> Float[jax.Array, "*batch L H V"]:
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V, equation 1.

    Args:
      query: [..., L, H, K].
      key: [..., M, H, K].
      value: [..., M, H, V]; V may differ from K.
      mask, bias, scale: as in `attention_weights`.
      dropout_rate: fraction of the weights dropped (0 in the paper); needs `dropout_rng` when positive.
      dropout_rng: a JAX random key.
      implementation: None computes as written above; "xla" and "cudnn" call
        `jax.nn.dot_product_attention`, which needs one batch axis, K = V and no dropout.

    Returns:
      [..., L, H, V] in the dtype of `value`.

    Raises:
      ValueError: unknown implementation, or one that does not support these options.
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation must be one of {IMPLEMENTATIONS}, got {implementation!r}")
    if implementation is not None:
        return _library_attention(query, key, value, mask, bias, scale, dropout_rate, implementation)
    weights = attention_weights(query, key, mask=mask, bias=bias, scale=scale)
    return weighted_sum(dropout(dropout_rng, weights, dropout_rate), value)


def weighted_sum(
    weights: Float[Array, "*batch H L M"], value: Float[Array, "*batch M H V"]
) -> Float[jax.Array, "*batch L H V"]:
    """The sum of the values by their weights, in the dtype of `value`: the output of each head.

    Raises:
      ValueError: `value` is not of a float type, to which the weights would be rounded.
    """
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(f"value must be of a float type, as the output is of its type, got {value.dtype}")
    return jnp.einsum("...hlm,...mhv->...hlv", weights.astype(value.dtype), value).swapaxes(-2, -3)


def masked_softmax(
    logits: Float[Array, "*batch M"], mask: Bool[Array, "*#batch #M"] | None
) -> Float[jax.Array, "*batch M"]:
    """Softmax over the last axis of float32 logits; rows without a True in `mask` become zeros, not NaN."""
    if mask is None:
        return jax.nn.softmax(logits)
    # A finite minimum keeps a fully masked row, and its gradient, free of inf - inf; the mask then zeroes it.
    logits = jnp.where(mask, logits, jnp.finfo(jnp.float32).min)
    exponentials = jnp.where(
        mask, jnp.exp(logits - jax.lax.stop_gradient(logits.max(-1, keepdims=True))), 0.0
    )
    return exponentials / jnp.maximum(exponentials.sum(-1, keepdims=True), jnp.finfo(jnp.float32).tiny)


def weights_of(
    attention: Callable[..., jax.Array],
    query: Float[Array, "*batch L H K"],
    key: Float[Array, "*batch M H K"],
    *,
    mask: Mask | None = None,
    **terms: Any,
) -> Float[jax.Array, "*batch H L M"]:
    """The weights that an attention function gives the keys: its output for values that are one-hot.

    Args:
      attention: a function like `dot_product_attention`, whose output is linear in the values.
      query: [..., L, H, K].
      key: [..., M, H, K].
      mask: as in `attention_weights`.
      terms: other options that the function's logits depend on, `bias` and `scale`.

    Returns:
      [..., H, L, M].
    """
    if attention is dot_product_attention:
        return attention_weights(query, key, mask=mask, **terms)
    *batch, keys, heads, features = key.shape
    chunks = -(-keys // features)  # of as many values as keys have features: some functions need K = V
    one_hot = jnp.eye(keys, chunks * features, dtype=key.dtype).reshape(keys, chunks, 1, features)
    values = (jnp.broadcast_to(one_hot[:, chunk], (*batch, keys, heads, features)) for chunk in range(chunks))
    outputs = [attention(query, key, value, mask=mask, **terms) for value in values]
    return jnp.concatenate(outputs, axis=-1)[..., :keys].swapaxes(-2, -3)


def unsupported_reason(
    implementation: str | None,
    *,
    key_features: int,
    value_features: int,
    dropout_rate: float,
    dtype: DTypeLike,
) -> str:
    """Why an implementation does not support these options, whatever the device; "" where it does.

    Args:
      implementation, dropout_rate: as in `dot_product_attention`.
      key_features, value_features: K and V.
      dtype: of query, key and value.

    Returns:
      The predicate of an error message whose subject is the implementation.
    """
    if implementation is None:
        return ""
    if dropout_rate > 0:
        return f"has no dropout of attention weights: expected 0, got {dropout_rate}"
    if key_features != value_features:
        return f"needs equal key and value features, got {key_features} and {value_features}"
    if implementation == "cudnn" and jnp.dtype(dtype).itemsize != 2:
        return f"computes in bfloat16, got {jnp.dtype(dtype).name}"
    if implementation == "cudnn" and (key_features % 8 or key_features > MAX_CUDNN_FEATURES):
        return f"needs key features that are multiples of 8, at most {MAX_CUDNN_FEATURES}, got {key_features}"
    return ""


def _check_types(query, mask):
    """Numbers in place of a mask, 0 and -inf for instance, would be taken for its opposite."""
    if mask is not None and not jnp.issubdtype(jnp.result_type(mask), jnp.bool_):
        raise ValueError(
            f"mask must be bool, True where the query may attend, got {jnp.result_type(mask)}; "
            "numbers to add to the logits are the bias"
        )
    if not jnp.issubdtype(query.dtype, jnp.floating):
        raise ValueError(f"query must be of a float type, as the weights are of its type, got {query.dtype}")


def _library_attention(query, key, value, mask, bias, scale, dropout_rate, implementation):
    """`jax.nn.dot_product_attention` with fully masked rows as in this module."""
    reason = unsupported_reason(
        implementation,
        key_features=key.shape[-1],
        value_features=value.shape[-1],
        dropout_rate=dropout_rate,
        dtype=query.dtype,
    )
    if reason:
        raise ValueError(f"implementation={implementation!r} {reason}")
    _check_types(query, mask)
    batch, length, heads, _ = query.shape
    if mask is not None:
        mask = jnp.broadcast_to(mask, (batch, heads, length, key.shape[1]))
    output = jax.nn.dot_product_attention(
        query, key, value, bias=bias, mask=mask, scale=scale, implementation=implementation
    )
    if mask is None:
        return output
    # The library attends to all keys equally in a fully masked row; here it is zeros.
    attends = mask.any(-1).swapaxes(-1, -2)[..., None]  # [B, L, H, 1]
    return jnp.where(attends, output, 0)
