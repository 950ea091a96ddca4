"""Tests of the language model of captions and codes against its equations in NumPy float64."""

import dataclasses

import jax
import numpy as np
import pytest

from tests.references.numeric_gradients import assert_gradient_close
from tests.systems.dalle import numpy_dalle
from tfm.systems.dalle.model import DALLE, DALLEConfig
from tfm.testing.models import quick_jit
from tfm.testing.parameters import random_parameters

CONFIG = DALLEConfig(
    text_vocabulary=6,
    codes=5,
    text_length=2,
    side=3,
    kernel=3,
    layers=3,
    d_model=8,
    d_ff=10,
    heads=2,
    dropout=0.0,
    attention_dropout=0.0,
)
KINDS = ("row", "column", "convolution")
MODEL = DALLE(CONFIG, CONFIG.vocabulary)
_RNG = np.random.default_rng(0)
WORDS, CODES = _RNG.integers(3, 6, (2, 2)), _RNG.integers(6, 11, (2, 9))
TOKENS = np.concatenate([np.ones((2, 1), int), WORDS, CODES], axis=1)


def reference(params):
    return numpy_dalle.log_probabilities(params, TOKENS, CONFIG, KINDS)


@pytest.fixture(scope="module")
def params():
    return random_parameters(MODEL, TOKENS, deviation=0.4)


@pytest.fixture(scope="module")
def computed(params):
    """Returns the gradient of the loss of all tokens, and the log probabilities."""

    def loss(params):
        logits = MODEL.apply({"params": params}, TOKENS, train=False)
        log_probabilities = jax.nn.log_softmax(logits)
        losses = -np.eye(CONFIG.vocabulary)[TOKENS[:, 1:]] * log_probabilities[:, :-1]
        return losses.sum(), log_probabilities

    return quick_jit(jax.grad(loss, has_aux=True))(params)


def test_log_probabilities_equal_numpy(params, computed):
    expected = reference(params)
    is_possible = np.isfinite(expected)
    np.testing.assert_allclose(computed[1][is_possible], expected[is_possible], rtol=1e-5, atol=1e-5)
    assert np.asarray(computed[1])[~is_possible].max() < -1e8


def test_gradients_equal_central_differences(params, computed):
    def loss(params):
        return numpy_dalle.nll_sums(reference(params), TOKENS, CONFIG.text_length).sum()

    assert_gradient_close(computed[0], loss, params)


def test_published_heads_have_64_features_and_the_convolutional_window_11_codes():
    config = DALLEConfig()
    assert (config.d_model // config.heads, config.kernel) == (64, 11)


def test_tables_of_places_start_like_the_table_of_tokens():
    config = dataclasses.replace(CONFIG, layers=1, d_model=256, text_length=15, side=16)
    model = DALLE(config, 16)
    params = quick_jit(lambda key: model.init(key, np.zeros((1, 1), int), train=False))(jax.random.key(0))
    places = params["params"]["positions"]
    deviations = {name: float(table.std()) for name, table in places.items()}
    expected = float(params["params"]["embedding"]["table"].std())
    assert deviations == pytest.approx(dict.fromkeys(("text", "row", "column"), expected), rel=0.1)
