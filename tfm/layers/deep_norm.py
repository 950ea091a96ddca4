"""DeepNorm (Wang et al. 2022): scaled residual connections and initial kernels for deep post-norm stacks.

The residual connection becomes LayerNorm(alpha * x + Sublayer(x)). The initial kernels of the attention
values, of the attention output and of the feed-forward network are multiplied by beta. Both constants depend
on the number of layers.
"""

from typing import NamedTuple, TypeVar

import flax.linen as nn

from tfm.errors import UserError

Layer = TypeVar("Layer", bound=nn.Module)
SUBLAYERS = ("self_attention", "cross_attention", "feed_forward")


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
