"""Tests of the feed-forward language model against its paper."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.cases import FEED_FORWARD
from tests.references.numeric_gradients import assert_gradient_close, cross_entropy
from tests.references.numpy_transformer import wide
from tests.systems.feed_forward_lm.numpy_feed_forward_lm import feed_forward_lm
from tfm.devices.memory import count_elements
from tfm.layers import residual
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


@pytest.mark.parametrize("model", FEED_FORWARD.values(), ids=FEED_FORWARD)
def test_gradients_equal_central_differences_of_numpy(model):
    params = random_parameters(model, TOKENS, deviation=0.7)
    labels = np.arange(TOKENS.size).reshape(TOKENS.shape)

    def loss(params):
        log_probabilities = jax.nn.log_softmax(model.apply({"params": params}, TOKENS, train=False))
        return -jnp.take_along_axis(log_probabilities, labels[..., None], -1).sum()

    def reference(params):
        return cross_entropy([feed_forward_lm(model.config, params, tokens) for tokens in TOKENS], labels)

    assert_gradient_close(quick_jit(jax.grad(loss))(params), reference, params, rtol=1e-4, atol=1e-4)


def test_dropout_is_on_the_embeddings_and_on_the_hidden_layer(monkeypatch):
    """A function in place of dropout shows where it is applied: tanh(rate * x)."""
    monkeypatch.setattr(residual, "dropout", lambda rng, x, rate: jnp.tanh(rate * x))
    model = FEED_FORWARD["direct"]
    model = model.clone(config=dataclasses.replace(model.config, dropout=0.8))
    params = random_parameters(model, TOKENS, deviation=0.7)
    rngs = {"dropout": jax.random.key(0)}
    apply = quick_jit(lambda params: model.apply({"params": params}, TOKENS, train=True, rngs=rngs))
    for logits, tokens in zip(apply(params), TOKENS, strict=True):
        expected = feed_forward_lm(
            model.config, jax.tree.map(wide, params), tokens, lambda x: np.tanh(0.8 * x)
        )
        np.testing.assert_allclose(logits, expected, atol=1e-4)


def test_defaults_are_mlp9():
    """Table 1: n = 5, m = 30, h = 100, no direct connections. The paper has no dropout."""
    config = FeedForwardLMConfig()
    assert (config.context, config.embedding_features, config.hidden_features) == (4, 30, 100)
    assert (config.direct, config.dropout) == (False, 0)


def test_initial_parameters_are_glorot_uniform_with_normal_embeddings_and_biases_of_zero():
    model = FeedForwardLM(FeedForwardLMConfig(context=3, embedding_features=16, hidden_features=40), 200)
    init = quick_jit(functools.partial(model.init, train=False))
    params = init(jax.random.key(0), TOKENS)["params"]
    assert not params["bias"].any()
    assert not params["hidden"]["bias"].any()
    for x in (params["output"], params["hidden"]["kernel"]):
        limit = (6 / sum(x.shape)) ** 0.5
        np.testing.assert_allclose(np.histogram(x, 5, (-limit, limit))[0] / x.size, 0.2, atol=0.04)
        assert np.abs(x).max() <= limit
    table = params["embedding"]["table"]
    assert table.std() == pytest.approx(1 / 4, rel=0.05)
    assert (np.abs(table) > 2 / 4).mean() == pytest.approx(0.0455, abs=0.015)  # of normal numbers


def test_hypotheses_continue_their_prefix_as_in_numpy():
    """The prefixes have different lengths, and the two hypotheses of each differ."""
    model, prefixes = FEED_FORWARD["direct"], np.array([[5, 6, 7], [9, 0, 0]])
    params = random_parameters(model, TOKENS, deviation=0.7)
    tokens = np.array([[[3, 4], [5, 8]], [[7, 7], [6, 10]]])  # for each step, prefix and hypothesis

    @quick_jit
    def decode(params):
        apply = functools.partial(model.apply, {"params": params})
        cache, logits = apply(prefixes, width=2, max_length=9, method="init_cache"), []
        for position, now in enumerate(tokens):
            outputs, cache = apply(now, cache, position, method="decode_step")
            logits.append(outputs)
        return logits

    logits = decode(params)
    for row, hypothesis in np.ndindex(2, 2):
        text = [*prefixes[row][prefixes[row] > 0], *tokens[:, row, hypothesis]]
        expected = feed_forward_lm(model.config, jax.tree.map(wide, params), np.array(text))[-2:]
        np.testing.assert_allclose([each[row, hypothesis] for each in logits], expected, atol=1e-4)


def test_tokens_of_other_segments_are_not_read():
    model = FEED_FORWARD["direct"]
    params = random_parameters(model, TOKENS, deviation=0.7)
    segments = np.array([[1, 1, 1, 2, 2, 3, 3]])
    apply = quick_jit(
        lambda params: model.apply({"params": params}, TOKENS[:1], segments=segments, train=False)
    )
    texts = np.split(TOKENS[0], [3, 5])
    expected = [feed_forward_lm(model.config, jax.tree.map(wide, params), text) for text in texts]
    np.testing.assert_allclose(apply(params)[0], np.concatenate(expected), atol=1e-4)


def test_feed_forward_model_sees_its_last_tokens_only():
    model = FEED_FORWARD["direct"]
    params = random_parameters(model, TOKENS)
    others = np.tile(TOKENS[0], (7, 1))
    np.fill_diagonal(others, 3 + others.diagonal() % 9)  # each row gets one other token
    apply = quick_jit(lambda params, tokens: model.apply({"params": params}, tokens, train=False))
    changed = np.abs(apply(params, others) - apply(params, TOKENS[:1])).max(-1) > 1e-6  # [token, position]
    distance = np.arange(7) - np.arange(7)[:, None]
    np.testing.assert_array_equal(changed, (distance >= 0) & (distance < model.config.context))
