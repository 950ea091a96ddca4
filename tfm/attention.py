"""Scaled dot-product attention (section 3.2.1, equation 1) as pure functions.

Shape letters: L query length, M key length, H heads, K key features, V value features; `...` are batch axes.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from tfm.array_types import Array, check_arrays
from tfm.attention_kernels import IMPLEMENTATIONS, fused_attention, unsupported_reason
from tfm.blockwise_attention import blockwise_attention
from tfm.dropout import dropout
from tfm.errors import UserError
from tfm.masks import AttentionMask, check_mask_axes, mask_to_array

Mask = Bool[Array, "*#batch #H #L #M"]
Bias = Float[Array, "*#batch #H #L #M"]


@check_arrays
def dot_product_attention(
    query: Float[Array, "*batch L H K"],
    key: Float[Array, "*batch M H K"],
    value: Float[Array, "*batch M H V"],
    *,
    mask: Mask | AttentionMask | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: jax.Array | None = None,
    implementation: str | None = None,
) -> Float[jax.Array, "*batch L H V"]:
    """Computes Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V, equation 1.

    Args:
      query: [..., L, H, K].
      key: [..., M, H, K].
      value: [..., M, H, V]. V may differ from K.
      mask: booleans [..., H, L, M], True where a query may attend to a key, or an `AttentionMask`. Each axis
        of the booleans may have size 1. They need all batch axes, except in a mask [1, L, M]. An
        `AttentionMask` needs arguments with one batch axis. None shows all keys.
      bias: added to the logits, broadcastable to [..., H, L, M].
      scale: factor of the logits. None means K ** -0.5.
      dropout_rate: dropout rate of the weights (0 in the paper). A positive rate needs `dropout_rng`.
      dropout_rng: a JAX random key.
      implementation: None computes the equation as written here. "xla" and "cudnn" call fused kernels. They
        need one batch axis and options without an `unsupported_reason`. "blockwise" computes
        `tfm.blockwise_attention`, whose memory is linear in the number of keys.

    Returns:
      [..., L, H, V] in the dtype of `value`. A query without a visible key gets zeros.

    Raises:
      ValueError: if shapes do not fit, if the implementation is unknown, if the dropout rate is out of range
        or has no `dropout_rng`, or if the dtypes differ with "xla" or "cudnn".
      UserError: if the implementation does not support the options.
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"Expected implementation to be one of {IMPLEMENTATIONS}, got {implementation!r}.")
    if implementation is not None:
        options: dict[str, Any] = {"bias": bias, "dropout_rate": dropout_rate}
        reason = unsupported_reason(implementation, query, key, value, **options)
        if reason:
            raise UserError(f"implementation={implementation!r} {reason}. Choose another one.")
        if implementation == "blockwise":
            return blockwise_attention(query, key, value, mask=mask, scale=scale)
        terms: dict[str, Any] = {"bias": bias, "scale": scale, "implementation": implementation}
        return fused_attention(query, key, value, mask, **terms)
    array = mask_to_array(mask, query.shape[-3], key.shape[-3])
    weights = attention_weights(query, key, mask=array, bias=bias, scale=scale)
    if dropout_rate:
        weights = dropout(dropout_rng, weights, dropout_rate)
    return weighted_sum(weights, value)


@check_arrays
def attention_weights(
    query: Float[Array, "*batch L H K"],
    key: Float[Array, "*batch M H K"],
    *,
    mask: Mask | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
) -> Float[jax.Array, "*batch H L M"]:
    """Computes softmax(Q K^T / sqrt(d_k)), the weight of each key for each query.

    Args:
      query: [..., L, H, K].
      key: [..., M, H, K].
      mask: booleans [..., H, L, M], True where a query may attend to a key. Each axis may have size 1. The
        batch axes may be missing only from a mask [1, L, M], see `tfm.masks.check_mask_axes`.
      bias: added to the logits, broadcastable to [..., H, L, M].
      scale: factor of the logits. None means K ** -0.5.

    Returns:
      [..., H, L, M] in the dtype of `query`. Each row sums to 1, except that a row without a visible key
      is all zeros. The softmax is computed in float32 for any dtype of the arguments.

    Raises:
      ValueError: if shapes do not fit. Numbers such as 0 and -inf are not a mask but a bias, because as
        booleans they would mean the opposite.
    """
    return masked_softmax(attention_logits(query, key, bias=bias, scale=scale), mask).astype(query.dtype)


@check_arrays
def attention_logits(
    query: Float[Array, "*batch L H K"],
    key: Float[Array, "*batch M H K"],
    *,
    bias: Bias | None = None,
    scale: float | None = None,
) -> Float[jax.Array, "*batch H L M"]:
    """Computes Q K^T / sqrt(d_k) in float32 without a mask, from the arguments of `attention_weights`."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    logits = jnp.einsum("...lhk,...mhk->...hlm", query * scale, key, preferred_element_type=jnp.float32)
    return logits if bias is None else logits + bias.astype(jnp.float32)


@check_arrays
def masked_softmax(
    logits: Float[Array, "*batch M"], mask: Bool[Array, "*#batch #M"] | None
) -> Float[jax.Array, "*batch M"]:
    """Computes a softmax over the last axis of float32 logits. Rows without visible keys become zeros.

    `mask` is True where a key is visible, and broadcasts to the logits. None shows all keys. The function
    raises a ValueError if the mask does not fit, see `tfm.masks.check_mask_axes`.
    """
    if mask is None:
        return jax.nn.softmax(logits)
    check_mask_axes(mask, logits.ndim)
    # A finite minimum keeps a fully masked row and its gradient free of inf - inf. The mask then zeroes it.
    logits = jnp.where(mask, logits, jnp.finfo(jnp.float32).min)
    exponentials = jnp.where(
        mask, jnp.exp(logits - jax.lax.stop_gradient(logits.max(-1, keepdims=True))), 0.0
    )
    return exponentials / jnp.maximum(exponentials.sum(-1, keepdims=True), jnp.finfo(jnp.float32).tiny)


@check_arrays
def weighted_sum(
    weights: Float[Array, "*batch H L M"], value: Float[Array, "*batch M H V"]
) -> Float[jax.Array, "*batch L H V"]:
    """Computes the output of each head [..., L, H, V]: the weighted sum of the values, in their dtype."""
    return jnp.einsum("...hlm,...mhv->...hlv", weights.astype(value.dtype), value).swapaxes(-2, -3)


@check_arrays
def infer_attention_weights(
    attention: Callable[..., jax.Array],
    query: Float[Array, "*batch L H K"],
    key: Float[Array, "*batch M H K"],
    *,
    mask: Mask | None = None,
    **terms: Any,
) -> Float[jax.Array, "*batch H L M"]:
    """Infers the weights of an attention function from its outputs for one-hot values.

    Args:
      attention: a function like `dot_product_attention`, whose output must be linear in the values.
      query: [..., L, H, K].
      key: [..., M, H, K].
      mask: see `attention_weights`.
      terms: other arguments that change the logits of the function, such as `bias` and `scale`.

    Returns:
      [..., H, L, M].

    Raises:
      ValueError: if shapes do not fit.
    """
    if attention is dot_product_attention:
        return attention_weights(query, key, mask=mask, **terms)
    *batch, keys, heads, features = key.shape
    # Some functions need K = V. Therefore a call gets one-hot values for only as many keys as features.
    chunks = -(-keys // features)
    one_hot = jnp.eye(keys, chunks * features, dtype=key.dtype).reshape(keys, chunks, 1, features)
    values = (jnp.broadcast_to(one_hot[:, chunk], (*batch, keys, heads, features)) for chunk in range(chunks))
    outputs = [attention(query, key, value, mask=mask, **terms) for value in values]
    return jnp.concatenate(outputs, axis=-1)[..., :keys].swapaxes(-2, -3)
