"""The residual connection around each sublayer (sections 3.1 and 5.4), with its norm and dropout."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from tfm.dropout import dropout
from tfm.layers.observe import observe

LAYER_NORM_EPSILON = 1e-6
NORM_ORDERS = ("post", "pre", "norm_then_add")


def layer_norm(
    dtype: DTypeLike = jnp.float32, epsilon: float = LAYER_NORM_EPSILON, name: str | None = None
) -> nn.Module:
    """Returns a LayerNorm (Ba et al. 2016) that computes in float32.

    The variance is the mean of (x - mean)^2. The faster formula, mean(x^2) - mean^2, loses precision when the
    mean is large.

    Args:
      dtype: Dtype of the output.
      epsilon: Number added to the variance. The authors' code uses 1e-6.
      name: Name of the module.
    """
    return nn.LayerNorm(epsilon=epsilon, dtype=dtype, use_fast_variance=False, name=name)


def rms_norm(
    dtype: DTypeLike = jnp.float32, epsilon: float = LAYER_NORM_EPSILON, name: str | None = None
) -> nn.Module:
    """Returns an RMSNorm (Zhang and Sennrich 2019) that computes in float32. Arguments: see `layer_norm`.

    It divides by the root of the mean square. Unlike LayerNorm, it subtracts no mean and has no bias.
    """
    return nn.RMSNorm(epsilon=epsilon, dtype=dtype, name=name)


NORMS = {"layer_norm": layer_norm, "rms_norm": rms_norm}


class Dropout(nn.Module):
    """A module that applies `tfm.dropout.dropout` in training, with a key of the random stream "dropout".

    Attributes:
      rate: Probability that an element is set to zero.
    """

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Applies dropout to an array of any shape. Returns it unchanged if `train` is False."""
        if not train or self.rate == 0:
            return x
        return dropout(self.make_rng("dropout"), x, self.rate)


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
        """Adds the output of a sublayer, a function of arrays [..., D], to its input x [..., D]."""
        if self.order not in NORM_ORDERS:
            raise ValueError(f"Expected order to be one of {NORM_ORDERS}, got {self.order!r}.")
        x = observe(self, "input", x)
        norm, drop = self.norm(name="norm"), Dropout(self.dropout_rate)
        scaled_x = x if self.input_scale == 1 else self.input_scale * x

        def call(x):
            return observe(self, "sublayer_output", sublayer(x))

        if self.order == "pre":
            output = scaled_x + drop(call(norm(x)), train=train)
        elif self.order == "norm_then_add":
            output = scaled_x + drop(norm(call(x)), train=train)
        else:
            output = norm(scaled_x + drop(call(x), train=train))
        return observe(self, "output", output if self.output_scale == 1 else self.output_scale * output)
