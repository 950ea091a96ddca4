"""Searches as jitted programs that tests lower without running them."""

import functools

import jax
import jax.numpy as jnp

from tfm.decoding.config import DecodingConfig
from tfm.decoding.protocol import search_parameters
from tfm.decoding.translate import search_batch
from tfm.models import TransformerConfig
from tfm.models.transformer import Transformer

CONFIG = TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=16, d_ff=24, heads=2)
MODEL = Transformer(CONFIG, vocabulary_size=30)
INPUTS = jax.ShapeDtypeStruct((2, 8), jnp.int32)
SEARCHES = {"greedy": {"beam_size": 1}, "beam": {}, "coverage": {"coverage_penalty": 0.2}}


@functools.cache
def parameters():
    token = jnp.ones((1, 1), jnp.int32)
    return jax.eval_shape(lambda key: MODEL.init(key, token, token, train=False), jax.random.key(0))["params"]


def make_search(name):
    """Returns a new jitted search, so that JAX does not reuse a trace for another device."""
    config = DecodingConfig(max_extra_tokens=4, **SEARCHES[name])
    return jax.jit(
        lambda params, inputs: search_batch.__wrapped__(MODEL, (search_parameters(params),), inputs, config)
    )
