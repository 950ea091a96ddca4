"""Tests of the gradients of a Transformer whose products oneDNN computes in bfloat16."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.programs import count_foreign_calls
from tfm import backend
from tfm.matmul import onednn
from tfm.models import Transformer, TransformerConfig
from tfm.testing.models import quick_jit
from tfm.testing.parameters import random_parameters

RNG = np.random.default_rng(0)
TINY = TransformerConfig(
    encoder_layers=2, decoder_layers=3, d_model=16, d_ff=24, heads=4, dropout=0.0, max_positions=16
)
INPUTS, TARGETS = RNG.integers(3, 30, (3, 7)), RNG.integers(3, 30, (3, 6))


@functools.cache
def parameters():
    model = Transformer(TINY, vocabulary_size=30)
    return random_parameters(model, INPUTS, TARGETS, deviation=0.1)


@pytest.mark.long
@pytest.mark.skipif(
    not onednn.multiplies_bfloat16(), reason="tfm-native is not installed, or the processor lacks avx512_bf16"
)
@pytest.mark.parametrize("fields", [{}, {"remat": True, "scan": True}], ids=str)
def test_bfloat16_gradients_of_onednn_are_as_exact_as_those_of_xla(fields):
    """oneDNN computes all products of layers and logits in the forward and the backward pass."""

    def gradient(params, dtype="bfloat16"):
        config = dataclasses.replace(TINY, dtype=dtype, **fields)
        model = Transformer(config, vocabulary_size=30)

        def loss(params):
            logits = model.apply({"params": params}, INPUTS, TARGETS, train=True)
            return (logits.astype(jnp.float32) ** 2).mean()

        return jax.grad(loss)(params)

    def compute(*arguments):
        return jax.tree.leaves(quick_jit(gradient, static_argnums=1)(parameters(), *arguments))

    products = 6 * TINY.encoder_layers + 10 * TINY.decoder_layers + 1
    assert fields or count_foreign_calls(gradient, parameters()) == 3 * products
    found, exact = compute(), compute("float32")
    with backend.no_foreign_calls():
        assert count_foreign_calls(gradient, parameters()) == 0
        plain = compute()
    for x, y, expected in zip(found, plain, exact, strict=True):
        error, of_xla = (jnp.linalg.norm(each - expected) for each in (x, y))
        assert error < 1.1 * of_xla + 1e-4
        assert error < 0.1 * jnp.linalg.norm(expected) + 1e-4
