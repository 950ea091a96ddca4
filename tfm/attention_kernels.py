"""The implementations of attention other than equation 1, and the choice between them.

Shape letters as in `tfm.attention`.
"""

from typing import Any

import jax
import jax.numpy as jnp

from tfm.array_types import Array
from tfm.devices import backend
from tfm.masks import AttentionMask, check_mask_axes, mask_to_array

IMPLEMENTATIONS = (None, "xla", "cudnn", "blockwise")
# From this number of keys on, blocks are faster on a CPU, and elsewhere the equation needs gigabytes for a
# row.
MIN_BLOCKWISE_KEYS, MIN_BLOCKWISE_KEYS_ELSEWHERE = 1024, 4096
MAX_CUDNN_FEATURES = 256  # since Hopper; earlier GPUs support half of it
AnyMask = AttentionMask | Array | None
Shaped = Array | jax.ShapeDtypeStruct


def choose_implementation(
    query: Shaped, key: Shaped, value: Shaped, **options: Any
) -> tuple[str | None, str]:
    """Chooses the implementation of `dot_product_attention` for this device and a call.

    Args:
      query, key, value: see `dot_product_attention`.
      options: bias and dropout_rate.

    Returns:
      The implementation, and a sentence for the log that says why. The implementation is "cudnn" if the
      device and the call allow it, otherwise "blockwise" for many keys if the call allows it, otherwise None,
      which means equation 1.
    """
    capability = backend.cuda_capability()
    reasons = {"cudnn": unsupported_reason("cudnn", query, key, value, train=True, **options)}
    if capability < 8:
        reasons["cudnn"] = "needs a CUDA device with compute capability 8 or higher"
    elif capability < 9 and key.shape[-1] > MAX_CUDNN_FEATURES // 2:
        reasons["cudnn"] = f"needs compute capability 9 for {key.shape[-1]} key features"
    if not reasons["cudnn"]:
        return "cudnn", "Attention runs in cuDNN's kernel, because the device and the options allow it."
    min_keys = MIN_BLOCKWISE_KEYS if backend.is_cpu() else MIN_BLOCKWISE_KEYS_ELSEWHERE
    if key.shape[-3] >= min_keys:
        reasons["blockwise"] = unsupported_reason("blockwise", query, key, value, **options)
        if not reasons["blockwise"]:
            return "blockwise", f"Attention runs blockwise, because a row has at least {min_keys:,} keys."
    because = " and ".join(f"{name} {reason}" for name, reason in reasons.items())
    return None, f"Attention runs as equation 1, because {because}."


def unsupported_reason(
    implementation: str | None,
    query: Shaped,
    key: Shaped,
    value: Shaped,
    *,
    bias: Any = None,
    dropout_rate: float = 0.0,
    train: bool = False,
) -> str:
    """Returns why an implementation does not support a call on any device, or "" if it does.

    Args:
      implementation: "xla", "cudnn", "blockwise", or None. None is the equation, and supports everything.
      query, key, value, bias, dropout_rate: see `tfm.attention.dot_product_attention`. Shapes are enough.
      train: whether the call needs gradients.

    Returns:
      The predicate of an error message whose subject is the implementation.
    """
    key_features, value_features = key.shape[-1], value.shape[-1]
    if implementation is None:
        return ""
    if dropout_rate > 0:
        return f"has no dropout of attention weights: expected 0, got {dropout_rate}"
    if implementation != "xla" and bias is not None:
        return "does not support positions that add to the logits"
    if implementation != "blockwise" and query.ndim > 4:
        return f"needs a query [B, L, H, K], got {query.shape}"
    if implementation != "blockwise" and key_features != value_features:
        return f"needs equal key and value features, got {key_features} and {value_features}"
    if implementation != "cudnn":
        return ""
    if jnp.dtype(query.dtype).itemsize != 2:
        return f"computes in bfloat16, got {query.dtype}"
    if key_features % 8 or key_features > MAX_CUDNN_FEATURES:
        return f"needs key features that are multiples of 8, at most {MAX_CUDNN_FEATURES}, got {key_features}"
    lengths = query.shape[-3], key.shape[-3]
    if train and any(length % 2 for length in lengths):
        return f"trains with even lengths, got {lengths[0]} queries and {lengths[1]} keys"
    return ""


def _kernel_can_compute(mask: AnyMask, query: Array) -> bool:
    """Returns whether a kernel of `jax.nn.dot_product_attention` can compute the mask itself."""
    if not isinstance(mask, AttentionMask):
        return mask is None
    return query.ndim == 4 and not mask.is_packed and (mask.causal or mask.window is None)


def _sequence_lengths(mask: AttentionMask, batch: tuple[int, ...], length: int) -> tuple[dict[str, Any], Any]:
    """Returns (arguments of the kernel, whether each query sees a key [B or 1, L or 1, 1, 1] or None).

    All lengths are at least 1, because a kernel may return NaN otherwise. With a causal window, the queries
    more than half a window after the last key see no key. The kernel leaves them out, too.
    """
    if mask.key_segments is None:  # then queries have no segments, either
        return {}, None
    keys = jnp.broadcast_to(jnp.sum(mask.key_segments, -1, dtype=jnp.int32), batch)  # True for tokens
    has_keys = (keys > 0)[:, None]
    lengths = {"key_value_seq_lengths": jnp.maximum(keys, 1)}
    queries = jnp.full(batch, length, jnp.int32)
    if mask.query_segments is not None:
        has_keys = has_keys & jnp.asarray(mask.query_segments)
        queries = jnp.broadcast_to(jnp.sum(mask.query_segments, -1, dtype=jnp.int32), batch)
    if mask.window is not None:
        last = lengths["key_value_seq_lengths"] + mask.window // 2
        has_keys = has_keys & (jnp.arange(length) < last[:, None])
        queries = jnp.minimum(queries, last)
    if mask.query_segments is not None or mask.window is not None:
        lengths["query_seq_lengths"] = jnp.maximum(queries, 1)
    return lengths, has_keys[..., None, None]


def fused_attention(query: Array, key: Array, value: Array, mask: AnyMask, **terms: Any) -> jax.Array:
    """Computes `dot_product_attention` by `jax.nn.dot_product_attention`.

    The kernels may return NaN for a query that sees no key. Such queries see other keys there, and their
    output is replaced by zeros.

    Args:
      query, key, value, mask: see `tfm.attention.dot_product_attention`.
      terms: further arguments of the JAX function: bias, scale and implementation ("xla" or "cudnn").

    Returns:
      [..., L, H, V].
    """
    batch, length, heads = query.shape[:-3], query.shape[-3], query.shape[-2]
    has_keys: Array | None = None
    if not _kernel_can_compute(mask, query):
        array: Any = mask_to_array(mask, length, key.shape[-3])
        check_mask_axes(array, query.ndim)
        can_attend = jnp.any(array, axis=-1, keepdims=True)  # [B or 1, H or 1, L or 1, 1]
        # cuDNN rejects a mask that is not broadcast.
        terms["mask"] = jnp.broadcast_to(array | ~can_attend, (*batch, heads, length, key.shape[-3]))
        has_keys = can_attend.swapaxes(-2, -3)
    elif isinstance(mask, AttentionMask):
        terms["is_causal"] = mask.causal
        terms["local_window_size"] = None if mask.window is None else (mask.window // 2, 0)
        lengths, has_keys = _sequence_lengths(mask, batch, length)
        terms |= lengths
    output = jax.nn.dot_product_attention(query, key, value, **terms)
    return output if has_keys is None else jnp.where(has_keys, output, 0)
