"""Flax modules around the pure functions: the layers of section 3 and their submodules, each usable alone.

Shape letters: B batch, L query length, M key length, D model, F hidden, H heads, K key features, V value
features or vocabulary, W live hypotheses of a batch row while decoding, T positions in the cache.

Masks are arguments (`tfm.masks`). `train` is an argument of the call. It turns dropout on, with keys of the
random stream "dropout". Layers are composed of modules, so a module can be replaced by passing another:

    Layer(self_attention=MultiHeadAttention(features=512, heads=8), feed_forward=FeedForward(512, 2048))
"""

from tfm.layers.attention import MultiHeadAttention
from tfm.layers.block_config import BlockConfig
from tfm.layers.deep_norm import (
    DeepNorm,
    apply_deep_norm,
    encoder_decoder_constants,
    single_stack_constants,
)
from tfm.layers.dropout import Dropout
from tfm.layers.embedding import Embedding, LearnedPositions
from tfm.layers.feed_forward import ACTIVATIONS, FeedForward
from tfm.layers.layer import Layer
from tfm.layers.normalization import LAYER_NORM_EPSILON, NORMS, layer_norm
from tfm.layers.parameter_axes import declare_axes
from tfm.layers.position_terms import BIAS_POSITIONS, POSITIONS, RelativeBias, RelativeKeys
from tfm.layers.residual import NORM_ORDERS, Residual
from tfm.layers.self_attention import SelfAttention
from tfm.layers.stack import Stack
from tfm.layers.transformer_base import ComposedModule, TransformerBase

__all__ = [
    "ACTIVATIONS",
    "BIAS_POSITIONS",
    "LAYER_NORM_EPSILON",
    "NORMS",
    "NORM_ORDERS",
    "POSITIONS",
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
    "SelfAttention",
    "Stack",
    "TransformerBase",
    "apply_deep_norm",
    "declare_axes",
    "encoder_decoder_constants",
    "layer_norm",
    "single_stack_constants",
]
