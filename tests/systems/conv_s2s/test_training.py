"""Tests of ConvS2S in training: its gradient, its dropout and its initial parameters."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.cases import CONVOLUTIONAL
from tests.references.numeric_gradients import assert_gradient_close
from tests.systems.conv_s2s.numpy_conv_s2s import conv_s2s, decode, encode
from tfm.layers import residual
from tfm.losses import smoothed_cross_entropy
from tfm.systems.conv_s2s.model import ConvS2S, ConvS2SConfig
from tfm.testing.models import VOCABULARY, quick_jit
from tfm.testing.parameters import random_parameters

RNG = np.random.default_rng(4)
SOURCES, TARGETS, LABELS = RNG.integers(3, VOCABULARY, (3, 2, 6))
SOURCES[1, 4:] = 0
WEIGHTS = (np.arange(6) < [[6], [5]]).astype(np.float32)


@pytest.mark.parametrize("name", ["two widths", pytest.param("one width", marks=pytest.mark.long)])
def test_gradient_equals_numpy_with_a_smaller_gradient_of_the_encoder_output(name):
    """Section 3.5: the gradient of the encoder is scaled by the number of attentions, here by 1 / (2 * 3)
    and 1 / (2 * 2) with the factor 1 / 2 of the authors' code. The embeddings in the values are not scaled.
    """
    model = CONVOLUTIONAL[name]
    params = random_parameters(model, SOURCES, TARGETS, deviation=0.5)
    factor = {"two widths": 1 / 6, "one width": 1 / 4}[name]

    def compute(params):
        logits = model.apply({"params": params}, SOURCES, TARGETS, train=False)
        return smoothed_cross_entropy(logits, LABELS, WEIGHTS, smoothing=0.0)[0]

    sources = [source[source > 0] for source in SOURCES]
    outputs = [encode(model.config, params, source)[0] for source in sources]

    def compute_loss(changed):
        total = 0.0
        for row, source in enumerate(sources):
            z, e = encode(model.config, changed, source)
            # The value of the output stays as it is, and its derivative is multiplied by the factor.
            z = outputs[row] + factor * (z - outputs[row])
            logits, _ = decode(model.config, changed, (z, e), TARGETS[row])
            log_z = np.log(np.exp(logits).sum(-1))
            total += WEIGHTS[row] @ (log_z - logits[np.arange(6), LABELS[row]])
        return total

    gradient = quick_jit(jax.grad(compute))(params)
    assert_gradient_close(gradient, compute_loss, params, rtol=2e-3, atol=5e-4)


def halve(rng, x, rate):
    """Takes the place of dropout, so that its places can be compared."""
    assert rate == 0.3
    return x / 2


@pytest.mark.long
@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_dropout_is_before_the_gates_and_the_output_and_not_in_the_shortcuts(name, monkeypatch):
    monkeypatch.setattr(residual, "dropout", halve)
    model = CONVOLUTIONAL[name]
    params = random_parameters(model, SOURCES, TARGETS, deviation=0.5)
    model = model.clone(config=dataclasses.replace(model.config, dropout=0.3))
    rngs = {"dropout": jax.random.key(0)}
    run = quick_jit(lambda p: model.apply({"params": p}, SOURCES, TARGETS, train=True, rngs=rngs))
    found = run(params)
    for row, source in enumerate(SOURCES):
        expected, _ = conv_s2s(model.config, params, source[source > 0], TARGETS[row], lambda x: x / 2)
        np.testing.assert_allclose(found[row], expected, atol=2e-4)


@pytest.mark.long
def test_initial_parameters_have_the_deviations_of_the_paper():
    """Section 3.5: sqrt(p / n) after dropout, sqrt(4 p / n) before gates and sqrt(1 / n) otherwise.

    Here p = 0.8 is the probability that dropout keeps an input, and n is the number of inputs.
    """
    config = ConvS2SConfig(
        encoder="1x40/3", decoder="1x48/2", embedding_features=50, max_positions=40, dropout=0.2
    )
    model, tokens = ConvS2S(config, 90), np.ones((1, 3), int)
    init = quick_jit(lambda key: model.init(key, tokens, tokens, train=False)["params"])
    params = init(jax.random.key(0))
    expected = {
        "encoder_input": (0.8, 50),
        "decoder_input": (0.8, 50),
        "output": (0.8, 50),
        "encoder_output": (1, 40),
        "decoder_output": (1, 48),
        "encoder_0/convolution": (4 * 0.8, 3 * 40),
        "decoder_0/convolution": (4 * 0.8, 2 * 48),
        "attentions_0/query": (1, 48),
        "attentions_0/output": (1, 50),
    }
    for name, (gain, inputs) in expected.items():
        part = params
        for key in name.split("/"):
            part = part[key]
        direction = np.asarray(part["direction"])
        assert len(direction) == inputs, name
        assert direction.std() == pytest.approx((gain / inputs) ** 0.5, rel=0.06), name
        np.testing.assert_allclose(part["scale"], np.linalg.norm(direction, axis=0), rtol=1e-5)
        assert not part["bias"].any(), name
    for side in ("source", "target"):
        for table in ("embedding", "positions"):
            assert np.std(params[f"{side}_{table}"]["table"]) == pytest.approx(0.1, rel=0.06)
    assert params["source_embedding"]["table"].shape == (90, 50)
    assert not np.allclose(params["source_embedding"]["table"], params["target_embedding"]["table"])


@pytest.mark.long
def test_a_layer_of_another_width_has_a_shortcut_with_gain_1():
    model = ConvS2S(ConvS2SConfig(encoder="1x40/1,1x90/1", decoder="1x8/1"), 20)
    init = quick_jit(
        lambda key: model.init(key, jnp.ones((1, 2), int), jnp.ones((1, 2), int), train=False)["params"]
    )
    params = init(jax.random.key(0))
    assert "shortcut" not in params["encoder_0"]
    assert np.std(params["encoder_1"]["shortcut"]["direction"]) == pytest.approx(40**-0.5, rel=0.06)


@pytest.mark.parametrize("text", ["1x1/1", "999x99999/99", "9x512/3,4x1024/3,2x2048/1"])
def test_layers_of_the_documented_form_are_accepted(text):
    assert ConvS2SConfig(encoder=text, decoder=text).encoder == text
