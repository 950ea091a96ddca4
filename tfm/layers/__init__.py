"""Flax modules around the pure functions: the sublayers and blocks of section 3, each usable on its own.

Shape letters: B batch, L query length, M key length, D model, F hidden, H heads, K key features, V value
features or vocabulary, W live hypotheses of a sentence while decoding, T positions in the cache.

Masks come from outside (`tfm.masks`); `train` is given at the call and turns dropout on, with the random
key of the collection "dropout". Blocks are composed from modules, so another mixer is another argument:

    EncoderLayer(mixer=MultiHeadAttention(features=512, heads=8), feed_forward=FeedForward(512, 2048))
"""

from tfm.layers.blocks import ComposedModule, DecoderLayer, EncoderLayer, Mixer, Stack
from tfm.layers.sublayers import (
    ACTIVATIONS,
    LAYER_NORM_EPSILON,
    NORM_ORDERS,
    Dropout,
    Embedding,
    FeedForward,
    LearnedPositions,
    MultiHeadAttention,
    Residual,
    layer_norm,
)

__all__ = [
    "ACTIVATIONS",
    "LAYER_NORM_EPSILON",
    "NORM_ORDERS",
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
    "layer_norm",
]
