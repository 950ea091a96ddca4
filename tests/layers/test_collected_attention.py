"""Reading of collected attention weights."""

import jax.numpy as jnp

from tfm.layers.collected_attention import attention_of


def test_layers_are_ordered_by_number():
    layers = {f"layers_{i}": {"mixer": {"weights": (jnp.full((1, 1, 1, 1), i),)}} for i in (10, 2, 0, 11, 1)}
    found = attention_of({"attention": {"decoder": layers}}, "decoder", "mixer")
    assert found.ravel().tolist() == [0, 1, 2, 10, 11]
