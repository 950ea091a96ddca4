"""Fused kernels for `tfm.attention.dot_product_attention`, and the reasons why a kernel cannot be used."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from tfm.array_types import Array
from tfm.masks import check_mask_axes

IMPLEMENTATIONS = (None, "xla", "cudnn")
MAX_CUDNN_FEATURES = 256  # since Hopper; earlier GPUs support half of it


def unsupported_reason(
    implementation: str | None,
    *,
    key_features: int,
    value_features: int,
    dropout_rate: float,
    dtype: DTypeLike,
) -> str:
    """Returns why an implementation does not support these options on any device, or "" if it does.

    Args:
      implementation: "xla", "cudnn", or None for the equation itself. The equation supports all options.
      key_features, value_features: K and V.
      dropout_rate: dropout rate of the attention weights.
      dtype: dtype of query, key and value.

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


def fused_attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    implementation: str,
    mask: Array | None,
    dropout_rate: float,
    **terms: Any,
) -> jax.Array:
    """Computes `tfm.attention.dot_product_attention` by `jax.nn.dot_product_attention`; `terms` go to both.

    Raises:
      ValueError: if the implementation is unknown or does not support the arguments.
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"Expected implementation to be one of {IMPLEMENTATIONS}, got {implementation!r}.")
    sizes = {"key_features": key.shape[-1], "value_features": value.shape[-1]}
    reason = unsupported_reason(implementation, **sizes, dropout_rate=dropout_rate, dtype=query.dtype)
    if query.ndim > 4:
        reason = f"needs a query [B, L, H, K], got {query.shape}"
    if reason:
        raise ValueError(f"implementation={implementation!r} {reason}.")
    terms["implementation"] = implementation
    if mask is None:
        return jax.nn.dot_product_attention(query, key, value, **terms)
    check_mask_axes(mask, query.ndim)
    *batch, length, heads, _ = query.shape
    # cuDNN rejects a mask that is not broadcast.
    full_mask = jnp.broadcast_to(mask, (*batch, heads, length, key.shape[-3]))
    output = jax.nn.dot_product_attention(query, key, value, mask=full_mask, **terms)
    # The library lets a query without visible keys attend to all keys. Here, its output is zeros.
    can_attend = jnp.any(mask, axis=-1).swapaxes(-1, -2)[..., None]  # [B or 1, L or 1, H or 1, 1]
    return jnp.where(can_attend, output, 0)
