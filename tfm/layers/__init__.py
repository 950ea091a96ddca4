"""Flax modules around the pure functions: the layers of section 3 and their parts, each usable on its own.

Shape letters: B batch, L query length, M key length, D model, F hidden, H heads, K key features, V value
features or vocabulary, W live hypotheses of a batch row while decoding, T positions in the cache.

Masks are arguments (`tfm.masks`); `train` is an argument of the call and turns dropout on, with keys of the
random stream "dropout". Layers are composed of modules, so another mixer is another argument:

    EncoderLayer(mixer=MultiHeadAttention(features=512, heads=8), feed_forward=FeedForward(512, 2048))
"""

from tfm.layers.attention import Mixer, MultiHeadAttention
from tfm.layers.composition import ComposedModule
from tfm.layers.deep_norm import (
    DeepNorm,
    apply_deep_norm,
    encoder_decoder_constants,
    single_stack_constants,
)
from tfm.layers.dropout import Dropout
from tfm.layers.embedding import Embedding, LearnedPositions
from tfm.layers.encoder_decoder import CausalLayer, DecoderLayer, EncoderLayer
from tfm.layers.feed_forward import ACTIVATIONS, FeedForward
from tfm.layers.normalization import LAYER_NORM_EPSILON, NORMS, layer_norm
from tfm.layers.parameter_axes import declare_axes
from tfm.layers.parts import BIAS_POSITIONS, POSITIONS, TransformerParts
from tfm.layers.position_bias import RelativeBias, RelativeKeys
from tfm.layers.residual import NORM_ORDERS, Residual
from tfm.layers.stack import Stack

__all__ = [
    "ACTIVATIONS",
    "BIAS_POSITIONS",
    "LAYER_NORM_EPSILON",
    "NORMS",
    "NORM_ORDERS",
    "POSITIONS",
    "CausalLayer",
    "ComposedModule",
    "DecoderLayer",
    "DeepNorm",
    "Dropout",
    "Embedding",
    "EncoderLayer",
    "FeedForward",
    "LearnedPositions",
    "Mixer",
    "MultiHeadAttention",
    "RelativeBias",
    "RelativeKeys",
    "Residual",
    "Stack",
    "TransformerParts",
    "apply_deep_norm",
    "declare_axes",
    "encoder_decoder_constants",
    "layer_norm",
    "single_stack_constants",
]
