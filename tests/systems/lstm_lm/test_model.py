"""Tests of the LSTM language model against its paper."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.cases import LSTMS
from tests.references.numpy_transformer import wide
from tests.systems.lstm_lm.numpy_lstm_lm import lstm_lm
from tfm.devices.memory import count_elements
from tfm.systems.lstm_lm.model import LSTMConfig, LSTMLanguageModel
from tfm.testing.models import VOCABULARY, quick_jit
from tfm.testing.parameters import random_parameters

TOKENS = np.random.default_rng(0).integers(3, VOCABULARY, (2, 7))
ZAREMBA = {"small": ({"features": 200}, 4_651_600), "medium": ({"features": 650}, 19_775_200)}
ZAREMBA |= {"large": ({}, 66_022_000)}  # Table 1, with 10,000 words


@pytest.mark.parametrize("name", ZAREMBA)
def test_lstm_sizes_are_those_of_zaremba(name):
    fields, expected = ZAREMBA[name]
    init = functools.partial(LSTMLanguageModel(LSTMConfig(**fields), 10_000).init, train=False)
    shapes = jax.eval_shape(init, jax.random.key(0), jax.ShapeDtypeStruct((1, 1), jnp.int32))
    assert count_elements(shapes) == expected


@pytest.mark.parametrize("model", LSTMS.values(), ids=LSTMS)
def test_logits_equal_numpy(model):
    params = random_parameters(model, TOKENS, deviation=0.7)
    logits = quick_jit(lambda params: model.apply({"params": params}, TOKENS, train=False))(params)
    for row, tokens in enumerate(TOKENS):
        expected = lstm_lm(model.config, jax.tree.map(wide, params), tokens)
        np.testing.assert_allclose(logits[row], expected, atol=1e-4)


@pytest.mark.parametrize("reads_embeddings", [False, True])
def test_dropout_applies_to_inputs_and_outputs_but_not_to_states(reads_embeddings):
    """With embeddings of zero, dropout only drops or doubles the outputs."""
    model = LSTMLanguageModel(LSTMConfig(layers=1, features=64, dropout=0.5), VOCABULARY)
    params = random_parameters(model, TOKENS)
    params["embedding"]["table"] = reads_embeddings * np.asarray(params["embedding"]["table"])

    def apply(train):
        rngs = {"dropout": jax.random.key(1)}
        return model.apply({"params": params}, TOKENS, train=train, rngs=rngs, method="features")[0]

    run = quick_jit(apply, static_argnums=0)
    dropped, kept = (np.asarray(run(train))[..., :-1] for train in (True, False))
    remaining = dropped != 0
    assert 0.4 < remaining.mean() < 0.6
    assert np.allclose(dropped[remaining], 2 * kept[remaining], rtol=1e-5) != reads_embeddings
