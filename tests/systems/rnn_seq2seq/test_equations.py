"""Tests of recurrent translation models against the equations of their papers in NumPy float64."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.cases import RNNS
from tests.references.numeric_gradients import assert_gradient_close, cross_entropy
from tests.references.numpy_transformer import wide
from tests.systems.rnn_seq2seq import numpy_rnn
from tfm.layers import residual
from tfm.layers.observe import read_attention
from tfm.systems.rnn_seq2seq.attention import ScoredAttention
from tfm.systems.rnn_seq2seq.config import INITIALIZATIONS
from tfm.testing.models import VOCABULARY, quick_jit
from tfm.testing.parameters import random_parameters

SOURCES, TARGETS = np.random.default_rng(0).integers(3, VOCABULARY, (2, 3, 7))
SOURCES[1, 4:] = 0
TARGETS = TARGETS[:, :6]


@quick_jit(static_argnums=0)
def apply_and_attend(model, params, *arguments):
    """Returns (logits, {kind: attention weights})."""
    apply = functools.partial(model.apply, {"params": params}, *arguments, train=False)
    points = model.attention_points.items()
    return apply(), {kind: read_attention(point, apply)[1] for kind, point in points}


@pytest.mark.long
@pytest.mark.parametrize("name", RNNS)
def test_recurrent_models_equal_numpy_sentence_by_sentence(name):
    model = RNNS[name]
    params = random_parameters(model, SOURCES, TARGETS, deviation=0.7)
    found, attention = apply_and_attend(model, params, SOURCES, TARGETS)
    params = jax.tree.map(wide, params)
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        source = source[source > 0]
        expected, weights = numpy_rnn.rnn(model.config, params, source, target)
        np.testing.assert_allclose(found[row], expected, atol=2e-4)
        if weights is not None:
            weights_to_source = attention["cross"][0, row, 0, :, : len(source)]
            np.testing.assert_allclose(weights_to_source, weights, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", RNNS)
def test_gradients_equal_central_differences_of_numpy(name):
    model, labels = RNNS[name], np.arange(TARGETS.size).reshape(TARGETS.shape)
    params = random_parameters(model, SOURCES, TARGETS, deviation=0.7)

    def loss(params):
        logits = model.apply({"params": params}, SOURCES, TARGETS, train=False)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1).sum()

    def reference(params):
        pairs = zip(SOURCES, TARGETS, strict=True)
        logits = [
            numpy_rnn.rnn(model.config, params, source[source > 0], target)[0] for source, target in pairs
        ]
        return cross_entropy(logits, labels)

    assert_gradient_close(quick_jit(jax.grad(loss))(params), reference, params, rtol=2e-4, atol=2e-4)


@pytest.mark.long
@pytest.mark.parametrize("name", ["Bahdanau", "Luong", "mixed"])
def test_dropout_is_on_the_input_of_each_layer_and_on_the_output_features(name, monkeypatch):
    """A function in place of dropout shows where it is applied: tanh(rate * x)."""
    monkeypatch.setattr(residual, "dropout", lambda rng, x, rate: jnp.tanh(rate * x))
    model = RNNS[name].clone(config=dataclasses.replace(RNNS[name].config, dropout=0.8))
    params = random_parameters(model, SOURCES, TARGETS, deviation=0.7)
    rngs = {"dropout": jax.random.key(0)}
    apply = quick_jit(lambda params: model.apply({"params": params}, SOURCES, TARGETS, train=True, rngs=rngs))
    for logits, source, target in zip(apply(params), SOURCES, TARGETS, strict=True):
        source, drop = source[source > 0], lambda x: np.tanh(0.8 * x)
        expected, _ = numpy_rnn.rnn(model.config, jax.tree.map(wide, params), source, target, drop)
        np.testing.assert_allclose(logits, expected, atol=2e-4)


@pytest.mark.long
def test_steps_of_the_decoder_drop_different_features():
    model = RNNS["Luong"].clone(config=dataclasses.replace(RNNS["Luong"].config, dropout=0.5))
    params, rngs = random_parameters(model, SOURCES, TARGETS), {"dropout": jax.random.key(0)}
    apply = functools.partial(model.apply, method="features", train=True, rngs=rngs)
    features, _ = quick_jit(lambda params: apply({"params": params}, SOURCES, TARGETS))(params)
    kept = np.asarray(features != 0)
    assert 0.3 < kept.mean() < 0.7
    assert 0.3 < (kept[:, 1:] != kept[:, :-1]).mean() < 0.7


@pytest.mark.long
@pytest.mark.parametrize("name", ["Bahdanau", "Luong", "mixed", "no attention, LSTM"])
def test_packed_sentences_equal_numpy(name):
    model = RNNS[name]
    params = random_parameters(model, SOURCES, TARGETS, deviation=0.7)
    source, target = SOURCES[:1], TARGETS[:1]
    packing = {
        "input_segments": np.array([[1, 1, 2, 2, 2, 2, 0]]),
        "target_segments": np.array([[1, 1, 1, 2, 2, 0]]),
    }
    apply = quick_jit(lambda params: model.apply({"params": params}, source, target, train=False, **packing))
    logits = apply(params)[0]
    params = jax.tree.map(wide, params)
    for inputs, outputs in ((slice(0, 2), slice(0, 3)), (slice(2, 6), slice(3, 5))):
        expected, _ = numpy_rnn.rnn(model.config, params, source[0, inputs], target[0, outputs])
        np.testing.assert_allclose(logits[outputs], expected, atol=2e-4)


@pytest.mark.long
@pytest.mark.parametrize("name", ["Bahdanau", "Luong", "mixed"])
def test_hypotheses_and_their_attention_equal_numpy_step_by_step(name):
    model = RNNS[name]
    params = random_parameters(model, SOURCES, TARGETS, deviation=0.7)
    tokens = np.array(
        [[[3, 4], [5, 8], [6, 6]], [[7, 7], [6, 10], [9, 3]]]
    )  # of each step, source, hypothesis

    @quick_jit
    def decode(params):
        apply = functools.partial(model.apply, {"params": params})
        cache, logits, weights = apply(SOURCES, width=2, max_length=9, method="init_cache"), [], []
        for position, now in enumerate(tokens):
            step = functools.partial(apply, now, cache, position, method="decode_step")
            (outputs, cache), attention = read_attention(model.attention_points["cross"], step)
            logits.append(outputs)
            weights.append(attention[0, :, 0])  # [B, W, M] of the only layer and head
        return logits, weights

    (logits, weights), params = decode(params), jax.tree.map(wide, params)
    for row, hypothesis in np.ndindex(3, 2):
        source = SOURCES[row][SOURCES[row] > 0]
        expected = numpy_rnn.rnn(model.config, params, source, tokens[:, row, hypothesis])
        np.testing.assert_allclose([each[row, hypothesis] for each in logits], expected[0], atol=2e-4)
        observed = np.array([each[row, hypothesis] for each in weights])
        np.testing.assert_allclose(observed[:, : len(source)], expected[1], atol=1e-5)
        assert not observed[:, len(source) :].any()


@pytest.mark.parametrize("score", ["additive", "general", "dot"])
def test_attention_equals_the_equations_of_its_score(score):
    """One query and its keys at a time; the last annotation of the second row is masked."""
    rng = np.random.default_rng(0)
    queries, annotations = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 5, 4))
    mask = np.array([[[True] * 5], [[True] * 4 + [False]]])
    module = ScoredAttention(score, 4, 6, INITIALIZATIONS["glorot"])
    shapes = (
        {"query": (4, 6), "key": (4, 6)}
        if score == "additive"
        else {"key": (4, 4)}
        if score == "general"
        else {}
    )
    params = {name: {"kernel": rng.normal(size=shape)} for name, shape in shapes.items()}
    if score == "additive":
        params["vector"] = rng.normal(size=(6, 1))

    @quick_jit
    def attend(params, queries, annotations):
        module_of = module.bind({"params": params})
        return module_of(queries, module_of.keys(annotations), annotations, mask)

    contexts, weights = attend(params, queries, annotations)
    for row, query in np.ndindex(2, 3):
        seen = annotations[row][mask[row, 0]]
        q, logits = queries[row, query], []
        for a in seen:
            if score == "additive":
                hidden = np.tanh(q @ params["query"]["kernel"] + a @ params["key"]["kernel"])
                logits.append(params["vector"][:, 0] @ hidden)
            else:
                logits.append(q @ (a @ params["key"]["kernel"] if score == "general" else a))
        expected = np.exp(logits) / np.exp(logits).sum()
        np.testing.assert_allclose(weights[row, query], [*expected, *[0] * (5 - len(seen))], atol=1e-5)
        np.testing.assert_allclose(contexts[row, query], expected @ seen, atol=1e-5)
