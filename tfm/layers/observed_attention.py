"""Attention whose logits and weights can be read and edited, because it is computed in separate steps.

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

    If no active observer wants the logits or the weights, this is `attention` itself.

    Args:
      module: The module that attends. The names of the activations begin with its path.
      attention: A function such as `tfm.attention.dot_product_attention`.
      key_positions: Positions of the keys, int [B, M] or [M]. None means 0, 1, 2, ...
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
    """Computes the output of `attention` in steps that pass the weights through `observe`.

    For `dot_product_attention`, the logits pass through `observe` too. For any other function, the weights
    are inferred from its outputs, and the output is their sum of values. `terms` are the bias and the scale
    of the logits.
    """
    del implementation  # A fused kernel does not return its weights.
    if attention is dot_product_attention:
        logits = observe("logits", attention_logits(query, key, **terms))
        weights = masked_softmax(logits, mask).astype(query.dtype)
    else:
        weights = infer_attention_weights(attention, query, key, mask=mask, **terms)
    return weighted_sum(dropout(dropout_rng, observe("weights", weights), dropout_rate), value)
