"""Tests of the feed-forward language model against its paper."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.cases import FEED_FORWARD
from tests.references.numpy_transformer import wide
from tests.systems.feed_forward_lm.numpy_feed_forward_lm import feed_forward_lm
from tfm.devices.memory import count_elements
from tfm.systems.feed_forward_lm.model import FeedForwardLM, FeedForwardLMConfig
from tfm.testing.models import VOCABULARY, quick_jit
from tfm.testing.parameters import random_parameters

TOKENS = np.random.default_rng(0).integers(3, VOCABULARY, (2, 7))


@pytest.mark.parametrize(("direct", "features"), [(False, 30), (True, 60)])
def test_feed_forward_size_is_that_of_bengio(direct, features):
    """Section 2: |V| (1 + n m + h) + h (1 + (n - 1) m) parameters with direct connections. n = 5, h = 100."""
    model = FeedForwardLM(FeedForwardLMConfig(direct=direct, embedding_features=features), 16_383)
    embeddings = 5 if direct else 1
    init = functools.partial(model.init, train=False)
    shapes = jax.eval_shape(init, jax.random.key(0), jax.ShapeDtypeStruct((1, 1), jnp.int32))
    expected = 16_383 * (1 + embeddings * features + 100) + 100 * (1 + 4 * features)
    assert count_elements(shapes) == expected


@pytest.mark.parametrize("model", FEED_FORWARD.values(), ids=FEED_FORWARD)
def test_logits_equal_numpy(model):
    params = random_parameters(model, TOKENS, deviation=0.7)
    logits = quick_jit(lambda params: model.apply({"params": params}, TOKENS, train=False))(params)
    for row, tokens in enumerate(TOKENS):
        expected = feed_forward_lm(model.config, jax.tree.map(wide, params), tokens)
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
