"""Attention computed in steps, so that its logits and weights can be read and edited.

Shape letters as in `tfm.layers`.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
from jax import Array

from tfm.attention import (
    attention_logits,
    dot_product_attention,
    infer_attention_weights,
    masked_softmax,
    weighted_sum,
)
from tfm.dropout import dropout
from tfm.layers.observe import explain_missing, is_wanted, observe

Attention = Callable[..., Array]


def observable(module: nn.Module, attention: Attention, key_positions: Array | None) -> Attention:
    """Returns an attention function whose logits and weights can be read and edited.

    This is `attention` itself unless somebody asks for them.

    Args:
      module: The module that attends. Names begin with its path.
      attention: A function such as `tfm.attention.dot_product_attention`.
      key_positions: Positions of the keys, [B, M] or [M], or None.
    """
    if not is_wanted(module, "logits", "weights"):
        return attention
    report = functools.partial(observe, module, axes="BHLM", key_positions=key_positions)
    if attention is not dot_product_attention:
        reason = "the attention function is not tfm.attention.dot_product_attention and keeps its logits"
        explain_missing(module, "logits", reason)
    return functools.partial(_attend_in_steps, attention, report)


def _attend_in_steps(
    attention: Attention,
    observe: Callable[[str, Array], Array],
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Array | None,
    dropout_rate: float = 0.0,
    dropout_rng: Array | None = None,
    implementation: str | None = None,
    **terms: Any,
) -> Array:
    """Attends like `attention`, without a fused kernel. `terms` are the bias and the scale of the logits."""
    del implementation
    if attention is dot_product_attention:
        logits = observe("logits", attention_logits(query, key, **terms))
        weights = masked_softmax(logits, mask).astype(query.dtype)
    else:
        weights = infer_attention_weights(attention, query, key, mask=mask, **terms)
    return weighted_sum(dropout(dropout_rng, observe("weights", weights), dropout_rate), value)
