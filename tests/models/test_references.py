"""Tests of every model against the equations of its paper in NumPy float64."""

import functools

import jax
import numpy as np
import pytest

from tests.models.cases import BASE, CLASSIFIERS, LANGUAGE_MODELS, RNNS, VIT, transformer
from tests.references import numpy_decoder_lm, numpy_rnn, numpy_transformer, numpy_vit
from tfm.layers.observe import read_attention
from tfm.systems.vit.model import VisionTransformer
from tfm.testing.models import VOCABULARY, quick_jit
from tfm.testing.parameters import random_parameters

RNG = np.random.default_rng(0)
SOURCES, TARGETS = RNG.integers(3, VOCABULARY, (2, 3, 7))
SOURCES[1, 4:] = 0
TARGETS = TARGETS[:, :6]
IMAGES = RNG.normal(size=(3, 6, 6, 2)).astype(np.float32)
EPSILON = 0.3


@quick_jit(static_argnums=0)
def apply(model, params, *arguments):
    return model.apply({"params": params}, *arguments, train=False)


@quick_jit(static_argnums=0)
def apply_and_attend(model, params, *arguments):
    """Returns (logits, {kind: attention weights})."""
    apply = functools.partial(model.apply, {"params": params}, *arguments, train=False)
    points = model.attention_points.items()
    return apply(), {kind: read_attention(point, apply)[1] for kind, point in points}


@pytest.mark.parametrize("order", ["post", "pre", "norm_then_add"])
@pytest.mark.parametrize("epsilon", [1e-6, EPSILON])
def test_transformer_equals_numpy(order, epsilon, monkeypatch):
    layer_norm = numpy_transformer.layer_norm
    monkeypatch.setattr(numpy_transformer, "layer_norm", lambda params, x: layer_norm(params, x, epsilon))
    model = transformer(encoder_layers=2, decoder_layers=2, norm_order=order, layer_norm_epsilon=epsilon)
    params = random_parameters(model, SOURCES, TARGETS)
    expected = numpy_transformer.transformer(params, SOURCES, TARGETS, order)
    np.testing.assert_allclose(apply(model, params, SOURCES, TARGETS), expected, atol=2e-5)


@pytest.mark.long
def test_gpt_2_equals_numpy():
    model = LANGUAGE_MODELS["GPT-2"]
    params = random_parameters(model, TARGETS)
    expected = numpy_decoder_lm.decoder_lm(params, TARGETS)
    np.testing.assert_allclose(apply(model, params, TARGETS), expected, atol=2e-5)


@pytest.mark.long
@pytest.mark.parametrize("epsilon", [1e-6, EPSILON])
def test_vision_transformer_equals_numpy(epsilon):
    model = VisionTransformer(VIT.__class__(**vars(VIT) | {"layer_norm_epsilon": epsilon}))
    params = random_parameters(model, IMAGES, deviation=0.3)
    expected = numpy_vit.logits(params, IMAGES, patch_size=3, epsilon=epsilon)
    np.testing.assert_allclose(apply(model, params, IMAGES), expected, atol=2e-5)


def test_patches_are_read_row_by_row():
    params = random_parameters(CLASSIFIERS["ViT"], IMAGES, deviation=0.3)
    table = params["positions"]["table"]
    same = params | {"positions": {"table": np.broadcast_to(table[:1], table.shape)}}
    swapped = np.concatenate([IMAGES[:, 3:], IMAGES[:, :3]], axis=1)
    model = CLASSIFIERS["ViT"]
    assert np.abs(apply(model, params, swapped) - apply(model, params, IMAGES)).max() > 1e-3
    np.testing.assert_allclose(apply(model, same, swapped), apply(model, same, IMAGES), atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", RNNS)
def test_recurrent_models_equal_numpy_sentence_by_sentence(name):
    model = RNNS[name]
    params = random_parameters(model, SOURCES, TARGETS, deviation=0.7)
    found, attention = apply_and_attend(model, params, SOURCES, TARGETS)
    wide = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        source = source[source > 0]
        expected, weights = numpy_rnn.rnn(model.config, wide, source, target)
        np.testing.assert_allclose(found[row], expected, atol=2e-4)
        if weights is not None:
            weights_to_source = attention["cross"][0, row, 0, :, : len(source)]
            np.testing.assert_allclose(weights_to_source, weights, atol=1e-5)


def test_base_config_of_these_tests_is_that_of_the_paper():
    assert (BASE.norm_order, BASE.positions, BASE.activation, BASE.tied_embeddings) == (
        "post",
        "interleaved",
        "relu",
        "three",
    )
