"""Compares T-DMCA with full attention on long rows: python -m benchmarks.long_rows

For each number of tokens: bytes of the temporary arrays of a training step of one row, CPU seconds of a
forward pass, and bytes of the cache and CPU seconds of a decoded token after a prefix of this length. Both
models have five layers and the same width. Prints one JSON line for each measurement.
"""

import functools
import json
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from benchmarks.layer_costs import measure_time  # with its flag --repeats
from tfm.losses import fused_linear_cross_entropy
from tfm.models.decoder_lm import DecoderLM, DecoderLMConfig
from tfm.systems.t_dmca.model import TDMCA, TDMCAConfig

FLAGS = flags.FLAGS
flags.DEFINE_list("tokens", ["512", "1024", "2048", "4096", "8192", "11000"], "Tokens of a row.")
SIZES = {"layers": 5, "d_model": 128, "d_ff": 512, "heads": 2, "dropout": 0.0, "attention_dropout": 0.0}
SIZES |= {"positions": "interleaved", "attention": None}
VOCABULARY = 1000
MODELS = {
    "full attention": DecoderLM(DecoderLMConfig(**SIZES), VOCABULARY),
    "T-DMCA": TDMCA(TDMCAConfig(**SIZES), VOCABULARY),
}


def measure_bytes(model: nn.Module, variables: Any, tokens: jax.Array) -> int:
    """Returns the bytes of the temporary arrays of a gradient of one row. Nothing runs."""

    def loss(variables: Any, tokens: jax.Array) -> jax.Array:
        features, table = model.apply(variables, tokens, train=True, method="features")
        ones = jnp.ones(tokens.shape)
        return fused_linear_cross_entropy(features, table, tokens, ones, 0.0, 1024)["loss"][0]

    return jax.jit(jax.grad(loss)).lower(variables, tokens).compile().memory_analysis().temp_size_in_bytes


def measure_decoding(model: nn.Module, variables: Any, prefix: jax.Array, repeats: int) -> tuple[int, float]:
    """Returns the bytes of the cache after a prefix, and the CPU seconds of a decoded token."""
    begin = functools.partial(model.apply, width=1, max_length=16, method="init_cache")
    shapes = jax.eval_shape(begin, variables, prefix)
    cache = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), shapes)  # the time depends on no value
    step = jax.jit(functools.partial(model.apply, method="decode_step"))
    seconds = measure_time(functools.partial(step, variables, prefix[:, :1], cache, 0), repeats)
    return sum(x.nbytes for x in jax.tree.leaves(cache.layers)), seconds


def main(_: list[str]) -> None:
    for name, model in MODELS.items():
        for length in map(int, FLAGS.tokens):
            tokens = jnp.asarray(np.random.default_rng(0).integers(3, VOCABULARY, (1, length)))
            variables = jax.jit(functools.partial(model.init, train=False))(jax.random.key(0), tokens[:, :2])
            forward = jax.jit(functools.partial(model.apply, train=False, method="features"))
            cached, token_seconds = measure_decoding(model, variables, tokens, FLAGS.repeats)
            row = {
                "model": name,
                "tokens": length,
                "training_mib": measure_bytes(model, variables, tokens) >> 20,
                "forward_seconds": measure_time(functools.partial(forward, variables, tokens), FLAGS.repeats),
                "cache_kib": cached >> 10,
                "token_seconds": token_seconds,
            }
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    app.run(main)
