"""Flax modules around the pure functions: the layers of section 3 and their parts, each usable on its own.

Shape letters: B batch, L query length, M key length, D model, F hidden, H heads, K key features, V value
features or vocabulary, W live hypotheses of a batch row while decoding, T positions in the cache.

Masks are arguments (`tfm.masks`); `train` is an argument of the call and turns dropout on, with keys of the
random stream "dropout". Layers are composed of modules, so another mixer is another argument:

    EncoderLayer(mixer=MultiHeadAttention(features=512, heads=8), feed_forward=FeedForward(512, 2048))
"""

from tfm.layers.attention import Mixer, MultiHeadAttention
from tfm.layers.composition import ComposedModule
from tfm.layers.dropout import Dropout
from tfm.layers.embedding import Embedding, LearnedPositions
from tfm.layers.encoder_decoder import CausalLayer, DecoderLayer, EncoderLayer
from tfm.layers.feed_forward import ACTIVATIONS, FeedForward
from tfm.layers.normalization import LAYER_NORM_EPSILON, layer_norm
from tfm.layers.parameter_axes import declare_axes
from tfm.layers.parts import TransformerParts
from tfm.layers.residual import NORM_ORDERS, Residual
from tfm.layers.stack import Stack

__all__ = [
    "ACTIVATIONS",
    "LAYER_NORM_EPSILON",
    "NORM_ORDERS",
    "CausalLayer",
    "ComposedModule",
    "DecoderLayer",
    "Dropout",
    "Embedding",
    "EncoderLayer",
    "FeedForward",
    "LearnedPositions",
    "Mixer",
    "MultiHeadAttention",
    "Residual",
    "Stack",
    "TransformerParts",
    "declare_axes",
    "layer_norm",
]
