"""Flax modules for the layers of section 3 and for their submodules.

Shape letters: B batch, L query length, M key length, D model width, F width of the hidden layer, H heads, K
features of a key, V features of a value or size of the vocabulary, R width of the kernel of a convolution, W
live hypotheses of a batch row while decoding, T positions in the cache, P positions of a prefix, P' positions
that are appended to it.

The caller computes the masks (`tfm.masks`) and passes them to the modules. The argument `train` of a call
turns dropout on. Dropout reads its random keys from the stream "dropout". Every module can be used without
the others, and a layer receives its submodules as arguments, so a submodule can be replaced:

    Layer(self_attention=MultiHeadAttention(features=512, heads=8), feed_forward=FeedForward(512, 2048))
"""

from tfm.layers.attention import MultiHeadAttention
from tfm.layers.batch_norm import BatchNorm, Rows
from tfm.layers.block_config import BlockConfig
from tfm.layers.embedding import Embedding, LearnedPositions
from tfm.layers.feed_forward import ACTIVATIONS, FeedForward
from tfm.layers.layer import Layer
from tfm.layers.position_terms import BIAS_POSITIONS, POSITIONS, RelativeBias, RelativeKeys
from tfm.layers.residual import (
    LAYER_NORM_EPSILON,
    NORM_ORDERS,
    NORMS,
    DeepNorm,
    Dropout,
    Residual,
    apply_deep_norm,
    encoder_decoder_constants,
    single_stack_constants,
)
from tfm.layers.stack import Stack
from tfm.layers.transformer_base import ComposedModule, TransformerBase

__all__ = [
    "ACTIVATIONS",
    "BIAS_POSITIONS",
    "LAYER_NORM_EPSILON",
    "NORMS",
    "NORM_ORDERS",
    "POSITIONS",
    "BatchNorm",
    "BlockConfig",
    "ComposedModule",
    "DeepNorm",
    "Dropout",
    "Embedding",
    "FeedForward",
    "Layer",
    "LearnedPositions",
    "MultiHeadAttention",
    "RelativeBias",
    "RelativeKeys",
    "Residual",
    "Rows",
    "Stack",
    "TransformerBase",
    "apply_deep_norm",
    "encoder_decoder_constants",
    "single_stack_constants",
]
