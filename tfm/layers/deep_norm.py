"""DeepNorm (Wang et al. 2022): residual weights and initialization by depth, for post-norm stacks.

The residual connection is LayerNorm(alpha x + Sublayer(x)), and the kernels of values, of attention's output
and of the feed-forward network begin beta times as large.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import flax.linen as nn

from tfm.errors import UserError
from tfm.layers.residual import Residual

Layer = TypeVar("Layer", bound=nn.Module)
SUBLAYERS = ("mixer", "cross_attention", "feed_forward")


class DeepNorm(NamedTuple):
    """The constants of one stack.

    Attributes:
      alpha: weight of the input in each residual sum.
      beta: factor of the initial kernels.
    """

    alpha: float
    beta: float


def encoder_decoder_constants(encoder_layers: int, decoder_layers: int) -> tuple[DeepNorm, DeepNorm]:
    """Those of an encoder and of a decoder that attends to it, of N and M layers.

    Of the encoder 0.81 (N^4 M)^(1/16) and 0.87 (N^4 M)^(-1/16), of the decoder (3 M)^(1/4) and (12 M)^(-1/4).
    """
    depth = encoder_layers**4 * decoder_layers
    encoder = DeepNorm(0.81 * depth ** (1 / 16), 0.87 * depth ** (-1 / 16))
    return encoder, DeepNorm((3 * decoder_layers) ** 0.25, (12 * decoder_layers) ** -0.25)


def single_stack_constants(layers: int) -> DeepNorm:
    """Those of an encoder or a decoder alone, of N layers: (2 N)^(1/4) and (8 N)^(-1/4)."""
    return DeepNorm((2 * layers) ** 0.25, (8 * layers) ** -0.25)


def apply_deep_norm(layer: Layer, constants: DeepNorm) -> Layer:
    """A copy of a layer, not yet bound, whose sublayers and residual connections have the constants.

    Raises:
      UserError: a sublayer cannot scale its initialization.
    """
    present = {name: getattr(layer, name) for name in SUBLAYERS if hasattr(layer, name)}
    for name, sublayer in present.items():
        if not hasattr(sublayer, "scale_initialization"):
            raise UserError(
                f"model.deep_norm needs a method scale_initialization(factor) of each sublayer, as "
                f"tfm.layers.MultiHeadAttention has it, but the {name} is a {type(sublayer).__name__}: "
                "give it one, or set model.deep_norm=False."
            )
    scaled = {name: sublayer.scale_initialization(constants.beta) for name, sublayer in present.items()}
    return layer.clone(**scaled, residual=_weight_inputs(layer.residual, constants.alpha))


def _weight_inputs(make_residual: Callable[[], Residual], alpha: float) -> Callable[[], Residual]:
    return lambda: make_residual().clone(input_weight=alpha)
