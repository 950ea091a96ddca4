"""The residual connection around each sublayer (sections 3.1 and 5.4)."""

from collections.abc import Callable

import flax.linen as nn
import jax

from tfm.layers import activations
from tfm.layers.dropout import Dropout
from tfm.layers.normalization import layer_norm

NORM_ORDERS = ("post", "pre", "norm_then_add")


class Residual(nn.Module):
    """The connection around each sublayer, section 3.1 and 5.4.

    Attributes:
      order: where the LayerNorm is applied.
        "post", the paper's: LayerNorm(x + Dropout(Sublayer(x)));
        "pre": x + Dropout(Sublayer(LayerNorm(x)));
        "norm_then_add": x + Dropout(LayerNorm(Sublayer(x))).
      dropout_rate: P_drop.
      norm: makes the norm; called as norm(name="norm").
      input_weight: of x in the sum, alpha of DeepNorm.
    """

    order: str = "post"
    dropout_rate: float = 0.1
    norm: Callable[..., nn.Module] = layer_norm
    input_weight: float = 1.0

    @nn.compact
    def __call__(self, x: jax.Array, sublayer: Callable[[jax.Array], jax.Array], *, train: bool) -> jax.Array:
        """x [..., D] and a function [..., D] -> [..., D]."""
        if self.order not in NORM_ORDERS:
            raise ValueError(f"order must be one of {NORM_ORDERS}, got {self.order!r}")
        x = activations.observe(self, "input", x)
        return activations.observe(self, "output", self._add(x, sublayer, train))

    def _add(self, x, sublayer, train):
        norm = self.norm(name="norm")
        drop = Dropout(self.dropout_rate)

        def call(x):
            return activations.observe(self, "sublayer_output", sublayer(x))

        kept = x if self.input_weight == 1 else self.input_weight * x
        if self.order == "pre":
            return kept + drop(call(norm(x)), train=train)
        if self.order == "norm_then_add":
            return kept + drop(norm(call(x)), train=train)
        return norm(kept + drop(call(x), train=train))
