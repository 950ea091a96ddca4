"""Tests of the LSTM language model and of the feed-forward language model against their papers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.cases import FEED_FORWARD, LSTMS
from tests.references.numpy_language_models import feed_forward_lm, lstm_lm
from tests.references.numpy_transformer import wide
from tfm.devices.memory import count_elements
from tfm.systems.feed_forward_lm.model import FeedForwardLM, FeedForwardLMConfig
from tfm.systems.lstm_lm.model import LSTMConfig, LSTMLanguageModel
from tfm.testing.models import VOCABULARY, quick_jit
from tfm.testing.parameters import random_parameters

TOKENS = np.random.default_rng(0).integers(3, VOCABULARY, (2, 7))
ZAREMBA = {"small": ({"features": 200}, 4_651_600), "medium": ({"features": 650}, 19_775_200)}
ZAREMBA |= {"large": ({}, 66_022_000)}  # Table 1, with 10,000 words


def count(model):
    """Returns the number of parameters of a model."""
    init = functools.partial(model.init, train=False)
    return count_elements(jax.eval_shape(init, jax.random.key(0), jax.ShapeDtypeStruct((1, 1), jnp.int32)))


@pytest.mark.parametrize("name", ZAREMBA)
def test_lstm_sizes_are_those_of_zaremba(name):
    fields, expected = ZAREMBA[name]
    assert count(LSTMLanguageModel(LSTMConfig(**fields), 10_000)) == expected


@pytest.mark.parametrize(("direct", "features"), [(False, 30), (True, 60)])
def test_feed_forward_size_is_that_of_bengio(direct, features):
    """Section 2: |V| (1 + n m + h) + h (1 + (n - 1) m) parameters with direct connections. n = 5, h = 100."""
    model = FeedForwardLM(FeedForwardLMConfig(direct=direct, embedding_features=features), 16_383)
    embeddings = 5 if direct else 1
    assert count(model) == 16_383 * (1 + embeddings * features + 100) + 100 * (1 + 4 * features)


@pytest.mark.parametrize(
    ("model", "reference"),
    [(model, lstm_lm) for model in LSTMS.values()]
    + [(model, feed_forward_lm) for model in FEED_FORWARD.values()],
    ids=[*LSTMS, *FEED_FORWARD],
)
def test_logits_equal_numpy(model, reference):
    params = random_parameters(model, TOKENS, deviation=0.7)
    logits = quick_jit(lambda params: model.apply({"params": params}, TOKENS, train=False))(params)
    for row, tokens in enumerate(TOKENS):
        expected = reference(model.config, jax.tree.map(wide, params), tokens)
        np.testing.assert_allclose(logits[row], expected, atol=1e-4)


def test_feed_forward_model_sees_its_last_tokens_only():
    model = FEED_FORWARD["direct"]
    params = random_parameters(model, TOKENS)
    others = np.tile(TOKENS[0], (7, 1))
    np.fill_diagonal(others, 3 + others.diagonal() % 9)  # each row gets one other token
    apply = quick_jit(lambda params, tokens: model.apply({"params": params}, tokens, train=False))
    changed = np.abs(apply(params, others) - apply(params, TOKENS[:1])).max(-1) > 1e-6  # [token, position]
    distance = np.arange(7) - np.arange(7)[:, None]
    np.testing.assert_array_equal(changed, (distance >= 0) & (distance < model.config.context))


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
