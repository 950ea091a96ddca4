"""The residual connection around each sublayer (sections 3.1 and 5.4)."""

from collections.abc import Callable

import flax.linen as nn
import jax

from tfm.layers.dropout import Dropout
from tfm.layers.normalization import layer_norm
from tfm.layers.observe import observe

NORM_ORDERS = ("post", "pre", "norm_then_add")


class Residual(nn.Module):
    """A residual connection around a sublayer, with a norm and dropout (sections 3.1 and 5.4).

    Attributes:
      order: Place of the norm, one of `NORM_ORDERS`.
        "post" (the paper): LayerNorm(x + Dropout(Sublayer(x)))
        "pre": x + Dropout(Sublayer(LayerNorm(x)))
        "norm_then_add": x + Dropout(LayerNorm(Sublayer(x)))
      dropout_rate: Dropout rate of the sublayer's output, P_drop.
      norm: Function that returns the norm. It is called as norm(name="norm").
      input_scale: Factor of x in the sum, alpha of DeepNorm.
      output_scale: Factor of the result, such as sqrt(0.5) in ConvS2S (Gehring et al. 2017).
    """

    order: str = "post"
    dropout_rate: float = 0.1
    norm: Callable[..., nn.Module] = layer_norm
    input_scale: float = 1.0
    output_scale: float = 1.0

    @nn.compact
    def __call__(self, x: jax.Array, sublayer: Callable[[jax.Array], jax.Array], *, train: bool) -> jax.Array:
        """Applies a sublayer and adds its output to its input.

        Args:
          x: Input of the sublayer, [..., D].
          sublayer: Function that maps [..., D] to [..., D].
          train: Whether dropout is on.

        Returns:
          [..., D].
        """
        if self.order not in NORM_ORDERS:
            raise ValueError(f"Expected order to be one of {NORM_ORDERS}, got {self.order!r}.")
        x = observe(self, "input", x)
        output = self._add_and_norm(x, sublayer, train)
        output = output if self.output_scale == 1 else self.output_scale * output
        return observe(self, "output", output)

    def _add_and_norm(
        self, x: jax.Array, sublayer: Callable[[jax.Array], jax.Array], train: bool
    ) -> jax.Array:
        """Computes the formula of `order`, with `input_scale` times x as the first term of the sum."""
        norm, dropout = self.norm(name="norm"), Dropout(self.dropout_rate)
        scaled_x = x if self.input_scale == 1 else self.input_scale * x

        def call(x):
            return observe(self, "sublayer_output", sublayer(x))

        if self.order == "pre":
            return scaled_x + dropout(call(norm(x)), train=train)
        if self.order == "norm_then_add":
            return scaled_x + dropout(norm(call(x)), train=train)
        return norm(scaled_x + dropout(call(x), train=train))
