"""The residual connection around each sublayer (sections 3.1 and 5.4), with its norm, dropout and scale.

DeepNorm (Wang et al. 2022) scales residual connections and initial kernels for deep post-norm stacks. The
residual connection becomes LayerNorm(alpha * x + Sublayer(x)). The initial kernels of the attention values,
of the attention output and of the feed-forward network are multiplied by beta. Both constants depend on the
number of layers.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from tfm.dropout import dropout
from tfm.errors import UserError
from tfm.layers.observe import observe

LAYER_NORM_EPSILON = 1e-6
Layer = TypeVar("Layer", bound=nn.Module)
SUBLAYERS = ("self_attention", "cross_attention", "feed_forward")
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
        """Adds the output of a sublayer, a function of arrays [..., D], to its input x [..., D].

        Returns [..., D] after the norm, dropout and the factors. `train` turns dropout on. The function
        raises a ValueError if `order` is unknown.
        """
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


class DeepNorm(NamedTuple):
    """The constants of DeepNorm for one stack.

    Attributes:
      alpha: Factor of the input in each residual sum.
      beta: Factor of the initial kernels.
    """

    alpha: float
    beta: float


def encoder_decoder_constants(encoder_layers: int, decoder_layers: int) -> tuple[DeepNorm, DeepNorm]:
    """Returns the constants of an encoder of N layers and of a decoder of M layers that attends to it.

    For the encoder, alpha is 0.81 (N^4 M)^(1/16) and beta is 0.87 (N^4 M)^(-1/16). For the decoder, alpha is
    (3 M)^(1/4) and beta is (12 M)^(-1/4).
    """
    depth = encoder_layers**4 * decoder_layers
    encoder = DeepNorm(0.81 * depth ** (1 / 16), 0.87 * depth ** (-1 / 16))
    return encoder, DeepNorm((3 * decoder_layers) ** 0.25, (12 * decoder_layers) ** -0.25)


def single_stack_constants(layers: int) -> DeepNorm:
    """Returns the constants of a single stack of N layers: alpha (2 N)^(1/4) and beta (8 N)^(-1/4)."""
    return DeepNorm((2 * layers) ** 0.25, (8 * layers) ** -0.25)


def apply_deep_norm(layer: Layer, constants: DeepNorm) -> Layer:
    """Returns a copy of an unbound layer in which the sublayers and residual connections use the constants.

    Raises:
      UserError: If a sublayer has no field `init_scale`.
    """
    present = {name: sublayer for name in SUBLAYERS if (sublayer := getattr(layer, name, None)) is not None}
    for name, sublayer in present.items():
        if not hasattr(sublayer, "init_scale"):
            raise UserError(
                "model.deep_norm needs a field init_scale in every sublayer, as in "
                f"tfm.layers.MultiHeadAttention, but the {name} is a {type(sublayer).__name__} without this "
                "field. Add the field, or set model.deep_norm=False."
            )
    scaled = {name: sublayer.clone(init_scale=constants.beta) for name, sublayer in present.items()}
    make_residual = layer.residual
    return layer.clone(**scaled, residual=lambda: make_residual().clone(input_scale=constants.alpha))
