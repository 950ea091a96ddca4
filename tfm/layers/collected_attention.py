"""Reads the weights that attention modules store in the collection "attention" when it is mutable."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from tfm.errors import UserError


def attention_of(collected: Mapping[str, Any], stack: str, block: str) -> jax.Array:
    """Attention weights [layers, B, H, L, M] of one kind.

    Args:
      collected: the second result of `model.apply(..., mutable=["attention"])`.
      stack: "encoder" or "decoder".
      block: "mixer" (self-attention) or "cross_attention".

    Raises:
      UserError: its module stored none, such as a mixer that is not attention.
    """
    layers = collected.get("attention", {}).get(stack, {})
    ordered = sorted(layers, key=lambda name: int(name.rpartition("_")[2]))
    if not ordered or not all("weights" in layers[layer].get(block, {}) for layer in ordered):
        raise UserError(
            f"Expected attention, but there are no attention weights of {stack} {block}: its module must "
            "store them with self.sow('attention', 'weights', ...), as tfm.layers.MultiHeadAttention does."
        )
    return jnp.stack([layers[layer][block]["weights"][0] for layer in ordered])
