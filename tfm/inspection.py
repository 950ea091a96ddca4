"""Reads what attention modules leave in the collection "attention" when it is mutable."""

import jax.numpy as jnp


def attention_of(collected, stack, block):
    """Attention weights [layers, B, H, L, M] of one kind.

    Args:
      collected: the second result of `model.apply(..., mutable=["attention"])`.
      stack: "encoder" or "decoder".
      block: "mixer" (self-attention) or "cross_attention".
    """
    layers = collected["attention"][stack]
    ordered = sorted(layers, key=lambda name: int(name.rpartition("_")[2]))
    return jnp.stack([layers[layer][block]["weights"][0] for layer in ordered])
