"""Tests of the rates of all dropouts of a model, attention weights included."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from tests.models import cases
from tfm import attention
from tfm.layers import residual

TOKENS = np.ones((1, 4), int)
IMAGES = np.ones((1, 6, 6, 2), np.float32)
OUTPUT, WEIGHTS, HIDDEN = 0.3, 0.2, 0.4  # different rates, none of which is a default
BLOCK_RATES = {"dropout": OUTPUT, "attention_dropout": WEIGHTS, "feed_forward_dropout": HIDDEN}


def with_fields(model, **fields):
    return model.clone(config=dataclasses.replace(model.config, **fields))


# name: (model, its arguments, how often each rate is used)
CASES = {
    "Transformer": (
        with_fields(cases.transformer(), encoder_layers=2, decoder_layers=3, **BLOCK_RATES),
        (TOKENS, TOKENS),
        # Both embedding sums, the output of each sublayer, the hidden layer of each feed-forward network, and
        # the weights of each attention.
        {OUTPUT: 2 + 2 * 2 + 3 * 3, HIDDEN: 2 + 3, WEIGHTS: 2 + 3 * 2},
    ),
    "DecoderLM": (
        with_fields(cases.decoder_lm(), layers=2, **BLOCK_RATES),
        (TOKENS,),
        {OUTPUT: 1 + 2 * 2, HIDDEN: 2, WEIGHTS: 2},
    ),
    # The Vision Transformer has one rate for outputs and hidden layers.
    "VisionTransformer": (
        with_fields(cases.CLASSIFIERS["ViT"], encoder_layers=2, dropout=OUTPUT, attention_dropout=WEIGHTS),
        (IMAGES,),
        {OUTPUT: 1 + 3 * 2, WEIGHTS: 2},
    ),
    # The embedding sum, the output of each sublayer, and the input of the head.
    "BERT": (
        with_fields(cases.ENCODERS["BERT, classes"], **BLOCK_RATES),
        (TOKENS,),
        {OUTPUT: 1 + 2 * 2 + 1, HIDDEN: 2, WEIGHTS: 2},
    ),
    # Both embedding sums, the input of each of two and three layers, and the output.
    "ConvS2S": (
        with_fields(cases.CONVOLUTIONAL["two widths"], dropout=OUTPUT),
        (TOKENS, TOKENS),
        {OUTPUT: 2 + 2 + 3 + 1},
    ),
    # The input of each layer, the input of each decoder cell, and the features of the output. The count is
    # unknown, because a scan traces its step several times.
    "RNN": (with_fields(cases.RNNS["Luong"], layers=2, dropout=OUTPUT), (TOKENS, TOKENS), None),
}


@pytest.mark.parametrize("name", CASES)
def test_every_dropout_uses_the_rate_of_its_field(name, monkeypatch):
    model, arguments, expected = CASES[name]
    rates = []

    def record(rng, x, rate):
        rates.append(rate)
        return x

    for module in (residual, attention):
        monkeypatch.setattr(module, "dropout", record)
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    jax.eval_shape(functools.partial(model.init, train=True), keys, *arguments)
    assert set(rates) == set(expected or [OUTPUT])
    assert expected is None or {rate: rates.count(rate) for rate in rates} == expected
