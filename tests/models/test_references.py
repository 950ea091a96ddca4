"""Tests of the Transformer and of GPT-2 against their equations in NumPy float64."""

import jax
import numpy as np
import pytest

from tests.models.cases import BASE, LANGUAGE_MODELS, transformer
from tests.references import numpy_decoder_lm, numpy_transformer
from tests.references.numeric_gradients import assert_gradient_close
from tfm.testing.models import VOCABULARY, quick_jit
from tfm.testing.parameters import random_parameters

RNG = np.random.default_rng(0)
SOURCES, TARGETS = RNG.integers(3, VOCABULARY, (2, 3, 7))
SOURCES[1, 4:] = 0
TARGETS = TARGETS[:, :6]
EPSILON = 0.3


@quick_jit(static_argnums=0)
def apply(model, params, *arguments):
    return model.apply({"params": params}, *arguments, train=False)


@pytest.mark.parametrize("order", ["post", "pre", "norm_then_add"])
@pytest.mark.parametrize("epsilon", [1e-6, EPSILON])
def test_transformer_equals_numpy(order, epsilon, monkeypatch):
    layer_norm = numpy_transformer.layer_norm
    monkeypatch.setattr(numpy_transformer, "layer_norm", lambda params, x: layer_norm(params, x, epsilon))
    model = transformer(encoder_layers=2, decoder_layers=2, norm_order=order, layer_norm_epsilon=epsilon)
    params = random_parameters(model, SOURCES, TARGETS)
    expected = numpy_transformer.transformer(params, SOURCES, TARGETS, order)
    np.testing.assert_allclose(apply(model, params, SOURCES, TARGETS), expected, atol=2e-5)


@pytest.mark.parametrize("kernel", [3, 2])
def test_transformer_with_convolutions_equals_numpy(kernel):
    model = transformer(feed_forward_kernel=kernel)
    params = random_parameters(model, SOURCES, TARGETS)
    expected = numpy_transformer.transformer(params, SOURCES, TARGETS)
    np.testing.assert_allclose(apply(model, params, SOURCES, TARGETS), expected, atol=2e-5)


@pytest.mark.long
def test_gradient_of_convolutions_equals_numpy():
    model = transformer(feed_forward_kernel=3)
    params = random_parameters(model, SOURCES, TARGETS)
    weights = RNG.normal(size=(*TARGETS.shape, VOCABULARY))

    def loss(params):
        return (apply.__wrapped__(model, params, SOURCES, TARGETS) * weights).sum()

    def loss_in_numpy(params):
        return (numpy_transformer.transformer(params, SOURCES, TARGETS) * weights).sum()

    assert_gradient_close(quick_jit(jax.grad(loss))(params), loss_in_numpy, params, atol=1e-3)


@pytest.mark.long
def test_gpt_2_equals_numpy():
    model = LANGUAGE_MODELS["GPT-2"]
    params = random_parameters(model, TARGETS)
    expected = numpy_decoder_lm.decoder_lm(params, TARGETS)
    np.testing.assert_allclose(apply(model, params, TARGETS), expected, atol=2e-5)


def test_base_config_of_these_tests_is_that_of_the_paper():
    assert (BASE.norm_order, BASE.positions, BASE.activation, BASE.tied_embeddings) == (
        "post",
        "interleaved",
        "relu",
        "three",
    )
