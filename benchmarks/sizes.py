"""The models and batches that the benchmarks measure, random tokens to feed them, and timing."""

import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from tfm.devices.matmul import dot_general
from tfm.models import Transformer, TransformerConfig

FIRST_WORD = 10  # ids below are left to special tokens
SIZES = {  # TransformerConfig fields, rows of a training batch, tokens of a row's side
    "small": ({"encoder_layers": 3, "decoder_layers": 3, "d_model": 256, "d_ff": 1024, "heads": 4}, 32, 32),
    "base": ({}, 16, 32),
    "big": ({"d_model": 1024, "d_ff": 4096, "heads": 16}, 16, 32),
    "deep": (
        {"d_model": 1024, "d_ff": 4096, "heads": 16, "encoder_layers": 24, "decoder_layers": 24},
        16,
        32,
    ),
}
VOCABULARY_SIZES = {"small": 8_000, "base": 37_000, "big": 37_000, "deep": 37_000}
DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1, "feed_forward_dropout": 0.1}


def make_model(size, **fields):
    """The Transformer of a size."""
    return Transformer(TransformerConfig(**(SIZES[size][0] | fields)), VOCABULARY_SIZES[size])


def tokens(model, rows, length, count, seed=0):
    """`count` pairs of source and target ids, int32 [rows, length], no padding."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(FIRST_WORD, model.vocabulary_size, (count, 2, rows, length), np.int32)
    return [tuple(pair) for pair in ids]


def training_flops(model, rows, length):
    """Multiply-adds x 2 of a training step's matrix products: forward, and twice that backward."""
    config = model.config
    d, f, v = config.d_model, config.d_ff, model.vocabulary_size
    encoder = config.encoder_layers * (2 * (4 * d * d + 2 * d * f) + 4 * length * d)
    decoder = config.decoder_layers * (2 * (8 * d * d + 2 * d * f) + 8 * length * d)
    return 3 * rows * length * (encoder + decoder + 2 * d * v)


def gemm_rate(dtype, size=None, calls=None):
    """Multiply-adds x 2 a second of a square product of random matrices, as layers multiply.

    On an accelerator, a product has to be large, and further products have to wait for it: a single one would
    mostly measure the time of a call. Zeros and ones would take less power there and run faster.
    """
    is_cpu = jax.default_backend() == "cpu"
    size, calls = size or (2048 if is_cpu else 8192), calls or (1 if is_cpu else 20)
    keys = jax.random.split(jax.random.key(0))
    a, b = (jax.random.normal(key, (size, size), jnp.dtype(dtype)) for key in keys)
    product = jax.jit(lambda a, b: dot_general(a, b, (((1,), (0,)), ((), ()))))
    seconds = min(timed(lambda: [product(a, b) for _ in range(calls)][-1], 3)[1] for _ in range(3))
    return 2 * size**3 * calls / seconds


def timed(call, calls):
    """(seconds of the first call, median seconds of `calls` further ones); each is waited for."""
    began = time.perf_counter()
    jax.block_until_ready(call())
    first = time.perf_counter() - began
    seconds = []
    for _ in range(calls):
        began = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - began)
    return first, statistics.median(seconds)
