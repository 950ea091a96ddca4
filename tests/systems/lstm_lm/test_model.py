"""Tests of the LSTM language model against its paper."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.cases import LSTMS
from tests.references.numeric_gradients import assert_gradient_close, cross_entropy
from tests.references.numpy_transformer import wide
from tests.systems.lstm_lm.numpy_lstm_lm import lstm_lm
from tfm.devices.memory import count_elements
from tfm.layers import residual
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


@pytest.mark.parametrize("model", LSTMS.values(), ids=LSTMS)
def test_gradients_equal_central_differences_of_numpy(model):
    params = random_parameters(model, TOKENS, deviation=0.7)
    labels = np.arange(TOKENS.size).reshape(TOKENS.shape)

    def loss(params):
        log_probabilities = jax.nn.log_softmax(model.apply({"params": params}, TOKENS, train=False))
        return -jnp.take_along_axis(log_probabilities, labels[..., None], -1).sum()

    def reference(params):
        return cross_entropy([lstm_lm(model.config, params, tokens) for tokens in TOKENS], labels)

    assert_gradient_close(quick_jit(jax.grad(loss))(params), reference, params, rtol=1e-4, atol=1e-4)


def test_dropout_is_where_the_paper_has_it(monkeypatch):
    """A function in place of dropout shows where it is applied: tanh(rate * x)."""
    monkeypatch.setattr(residual, "dropout", lambda rng, x, rate: jnp.tanh(rate * x))
    model = LSTMS["Zaremba"]
    model = model.clone(config=dataclasses.replace(model.config, dropout=0.8))
    params = random_parameters(model, TOKENS, deviation=0.7)
    rngs = {"dropout": jax.random.key(0)}
    apply = quick_jit(lambda params: model.apply({"params": params}, TOKENS, train=True, rngs=rngs))
    for logits, tokens in zip(apply(params), TOKENS, strict=True):
        expected = lstm_lm(model.config, jax.tree.map(wide, params), tokens, lambda x: np.tanh(0.8 * x))
        np.testing.assert_allclose(logits, expected, atol=1e-4)


def test_defaults_are_the_large_model():
    """Section 4.1: two layers, a dropout of 65 % and initial parameters between -0.04 and 0.04."""
    config = LSTMConfig()
    assert (config.layers, config.features, config.dropout, config.initial_range) == (2, 1500, 0.65, 0.04)
    assert (config.forget_bias, config.tied_embeddings) == (0, False)


def test_initial_parameters_are_uniform_within_the_range():
    """The authors' code draws all parameters in one call, including the bias of the logits."""
    model = LSTMLanguageModel(LSTMConfig(features=40, initial_range=0.3), 50)
    init = quick_jit(functools.partial(model.init, train=False))
    params = init(jax.random.key(0), TOKENS)["params"]
    kernels = []
    for path, x in jax.tree_util.tree_leaves_with_path(params):
        shares = np.histogram(x, bins=5, range=(-0.3, 0.3))[0] / x.size
        tolerance = 1.8 / x.size**0.5  # 4.5 deviations
        np.testing.assert_allclose(shares, 0.2, atol=tolerance, err_msg=jax.tree_util.keystr(path))
        assert shares.sum() == pytest.approx(1)
        kernels += np.split(np.asarray(x), 4, axis=-1) if "cell" in str(path) else []
    assert len({kernel.tobytes() for kernel in kernels}) == len(kernels) == 2 * 3 * 4  # none repeats another


@pytest.mark.parametrize("method", ["__call__", "features"])
def test_compute_dtype_is_that_of_the_config(method):
    model = LSTMLanguageModel(LSTMConfig(features=4, dtype="bfloat16"), VOCABULARY)
    params = random_parameters(model, TOKENS)
    apply = functools.partial(model.apply, train=False, method=method)
    outputs = jax.eval_shape(apply, {"params": params}, TOKENS)
    assert jax.tree.leaves(outputs)[0].dtype == jnp.bfloat16


def test_hypotheses_continue_their_prefix_as_in_numpy():
    """The prefixes have different lengths, and the two hypotheses of each differ."""
    model, prefixes = LSTMS["Zaremba"], np.array([[5, 6, 7], [9, 0, 0]])
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
        expected = lstm_lm(model.config, jax.tree.map(wide, params), text)[-2:]
        np.testing.assert_allclose([each[row, hypothesis] for each in logits], expected, atol=1e-4)


def test_states_restart_with_each_segment_as_in_numpy():
    model = LSTMS["Zaremba"]
    params = random_parameters(model, TOKENS, deviation=0.7)
    segments = np.array([[1, 1, 1, 2, 2, 3, 3]])
    apply = quick_jit(
        lambda params: model.apply({"params": params}, TOKENS[:1], segments=segments, train=False)
    )
    texts = np.split(TOKENS[0], [3, 5])
    expected = [lstm_lm(model.config, jax.tree.map(wide, params), text) for text in texts]
    np.testing.assert_allclose(apply(params)[0], np.concatenate(expected), atol=1e-4)


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
