"""Tests of the Universal Transformer in training: its gradient, its dropout and its initial parameters."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from tests.models.cases import UNIVERSALS
from tests.references.numeric_gradients import assert_gradient_close
from tests.systems.universal.numpy_universal import universal_transformer
from tfm import attention
from tfm.layers import residual
from tfm.losses import smoothed_cross_entropy
from tfm.systems.universal.model import UniversalConfig
from tfm.testing.models import VOCABULARY, quick_jit
from tfm.testing.parameters import random_parameters
from tfm.training.loss_calls import apply_model, check_output
from tfm.training.task import Context, LossOutput

RNG = np.random.default_rng(5)
SOURCES, TARGETS, LABELS = RNG.integers(3, VOCABULARY, (3, 2, 6))
SOURCES[1, 4:] = 0
SEGMENTS = np.array([[1] * 6, [1] * 2 + [0] * 4])


def compute_terms(model, params):
    """Returns the sum of the losses and of the ponder costs, and {name: (sum, count)} of the costs."""
    segments = {"input_segments": (SOURCES > 0).astype(int), "target_segments": SEGMENTS}
    call = {"context": Context(0, jax.random.key(0)), **segments}
    logits, state = apply_model(model, {"params": params}, SOURCES, TARGETS, **call)
    nll = smoothed_cross_entropy(logits, LABELS, SEGMENTS, smoothing=0.0)
    terms = check_output(LossOutput({"loss": nll}, {}, state), {}).terms
    return sum(total for total, _ in terms.values()), {name: terms[name] for name in terms if name != "loss"}


def compute_loss(model, params):
    """Returns the sum of `compute_terms` from NumPy, and the ponder costs of all tokens of both sides."""
    total, costs = 0.0, [0.0, 0.0]
    for row in range(2):
        length = SEGMENTS[row].sum()
        source, target = SOURCES[row][SOURCES[row] > 0], TARGETS[row][:length]
        logits, *of_sides = universal_transformer(model.config, params, source, target)
        log_z = np.log(np.exp(logits).sum(-1))
        total += (log_z - logits[np.arange(length), LABELS[row][:length]]).sum()
        if model.config.halting:
            costs = [cost + of_side.sum() for cost, of_side in zip(costs, of_sides, strict=True)]
    costs = [model.config.ponder_cost * cost for cost in costs]
    return total + sum(costs), costs


@pytest.mark.parametrize(
    "name",
    ["halting", *(pytest.param(name, marks=pytest.mark.long) for name in ("sinusoids", "learned", "scan"))],
)
def test_gradient_of_the_loss_and_of_the_ponder_cost_equals_numpy(name):
    model = UNIVERSALS[name]
    if model.config.halting:  # so large that its gradient matters
        model = model.clone(config=dataclasses.replace(model.config, ponder_cost=3.0))
    params = random_parameters(model, SOURCES, TARGETS)
    run = functools.partial(compute_terms, model)
    gradient, terms = quick_jit(jax.grad(run, has_aux=True))(params)
    if model.config.halting:
        _, costs = compute_loss(model, params)
        names = ["encoder.output.ponder", "decoder.output.ponder"]
        np.testing.assert_allclose([terms[name][0] for name in names], costs, rtol=1e-5)
        assert [int(terms[name][1]) for name in names] == [10, 8]
    else:
        assert not terms
    assert_gradient_close(
        gradient, lambda params: compute_loss(model, params)[0], params, rtol=2e-3, atol=5e-4
    )


@pytest.mark.long
@pytest.mark.parametrize("name", ["learned", "halting"])
def test_dropout_is_in_the_embeddings_and_in_each_sublayer_of_each_step(name, monkeypatch):
    """A function takes the place of dropout, so that its places can be compared."""

    def halve(rng, x, rate):
        assert rate == 0.3
        return x / 2

    for module in (residual, attention):
        monkeypatch.setattr(module, "dropout", halve)
    model = UNIVERSALS[name]
    params = random_parameters(model, SOURCES, TARGETS)
    model = model.clone(config=dataclasses.replace(model.config, dropout=0.3))
    rngs = {"dropout": jax.random.key(0)}
    run = quick_jit(
        lambda p: model.apply({"params": p}, SOURCES, TARGETS, train=True, rngs=rngs, mutable=["loss_terms"])[
            0
        ]
    )
    found = run(params)
    for row in range(2):
        source = SOURCES[row][SOURCES[row] > 0]
        expected, *_ = universal_transformer(model.config, params, source, TARGETS[row], lambda x: x / 2)
        np.testing.assert_allclose(found[row], expected, atol=1e-4)


@pytest.mark.long
def test_halting_begins_with_the_bias_1_and_learned_steps_with_the_deviation_of_embeddings():
    fields = {"halting": True, "step_signal": "learned", "encoder_layers": 40, "decoder_layers": 30}
    fields |= {"d_model": 64, "d_ff": 8, "heads": 1}
    model = UNIVERSALS["learned"].clone(config=UniversalConfig(**fields, scan=True))
    init = quick_jit(lambda key: model.init(key, SOURCES, TARGETS, train=False)["params"])
    params = init(jax.random.key(0))
    for side, steps in (("encoder", 40), ("decoder", 30)):
        assert params[side]["output"]["halt"]["bias"].tolist() == [1]
        table = params[side]["before_layer"]["steps"]
        assert table.shape == (steps, 64)
        assert np.std(table) == pytest.approx(64**-0.5, rel=0.06)


def test_defaults_of_halting_are_those_of_the_paper_and_of_its_code():
    config = UniversalConfig()
    assert (config.halting, config.halting_epsilon, config.ponder_cost) == (False, 0.01, 0.01)
    assert (config.encoder_layers, config.decoder_layers) == (6, 6)
