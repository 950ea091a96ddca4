"""Tests of the Universal Transformer: its parameters, its signals and its adaptive computation time."""

import dataclasses
import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from tests.models.cases import UNIVERSALS
from tests.systems.universal.numpy_universal import universal_transformer
from tfm import interpret
from tfm.errors import UserError
from tfm.systems.universal.model import UniversalConfig, UniversalTransformer, halting_weights
from tfm.testing.models import VOCABULARY, quick_jit
from tfm.testing.parameters import random_parameters
from tfm.training.loss_calls import apply_model, check_output
from tfm.training.task import Context, LossOutput

TOKEN = np.ones((1, 1), int)
SOURCES, TARGETS = np.random.default_rng(0).integers(3, VOCABULARY, (2, 2, 6))
SOURCES[1, 4:] = 0
SPECIAL = {"before_layer": "signals", "attention/.*/bias": "biases of attention", "output/halt": "halting"}
TARGET_SEGMENTS = np.array([[1] * 6, [1] * 2 + [0] * 4])


def count_parts(**fields):
    """Returns {name of a part: number of parameters} of the published size."""
    model = UniversalTransformer(UniversalConfig(**fields), 37_000)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), TOKEN, TOKEN, train=False))
    parts: dict[str, int] = {}
    for path, x in flatten_dict(shapes["params"], sep="/").items():
        name = next((name for part, name in SPECIAL.items() if re.search(part, path)), path.split("/")[0])
        parts[name] = parts.get(name, 0) + math.prod(x.shape)
    return parts


# One table of 37,000 x 512. A layer of the encoder has 4 matrices of 512 x 512 (attention), 2 of 512 x 2048
# with biases, and 2 norms. A layer of the decoder has 4 more matrices and another norm.
FEED_FORWARD = 2 * 512 * 2048 + 2048 + 512
PARTS = {
    "embedding": 37_000 * 512,
    "encoder": 4 * 512**2 + FEED_FORWARD + 2 * 2 * 512,
    "decoder": 8 * 512**2 + FEED_FORWARD + 3 * 2 * 512,
}


@pytest.mark.parametrize(
    ("fields", "more", "total"),
    [
        ({}, {}, 26_294_272),
        ({"step_signal": "learned"}, {"signals": 2 * 6 * 512}, 26_300_416),
        ({"attention_bias": True}, {"biases of attention": (4 + 8) * 512}, 26_300_416),
        ({"halting": True}, {"halting": 2 * 513}, 26_295_298),
    ],
)
def test_parts_have_the_published_numbers_of_parameters(fields, more, total):
    """Learned signals and biases of attention are equally many, so the sum alone does not prove the parts."""
    parts = count_parts(**fields)
    assert parts == PARTS | more
    assert sum(parts.values()) == total


def test_halting_weights_equal_a_loop_and_their_sum_is_1():
    rng = np.random.default_rng(1)
    probabilities = rng.uniform(0.01, 0.7, (7, 50))
    weights, steps, remainder = halting_weights(jnp.asarray(probabilities), 0.01)
    for position in range(50):
        total, expected = 0.0, np.zeros(7)
        for step, p in enumerate(probabilities[:, position]):
            if total + p >= 0.99 or step == 6:
                expected[step] = 1 - total
                break
            expected[step], total = p, total + p
        np.testing.assert_allclose(weights[:, position], expected, atol=1e-6)
        assert steps[position] == step + 1
        np.testing.assert_allclose(remainder[position], expected[step], atol=1e-6)
    np.testing.assert_allclose(weights.sum(0), 1, atol=1e-6)


def test_position_halts_once_if_a_rounded_sum_is_at_the_limit():
    probabilities = np.float32([0.32965004444, 0.43491935730, 0.22543062270, 0.5411306])
    weights, steps, _ = halting_weights(jnp.asarray(probabilities), 0.01)
    np.testing.assert_allclose(weights.sum(), 1, atol=1e-6)
    assert (weights > 0).sum() == steps


@quick_jit(static_argnums=0)
def ponder_terms(model, params, sources=SOURCES, targets=TARGETS):
    """Returns the ponder terms of a training step without dropout."""
    segments = {"input_segments": (SOURCES > 0).astype(int), "target_segments": TARGET_SEGMENTS}
    context = Context(0, jax.random.key(0))
    call = {"context": context, "method": "features", **segments}
    _, state = apply_model(model, {"params": params}, sources, targets, **call)
    terms = check_output(LossOutput({"loss": (jnp.float32(0), 1)}, {}, state), {}).terms
    return {name: pair for name, pair in terms.items() if name != "loss"}


@pytest.mark.long
@pytest.mark.parametrize("name", ["halting", "scan"])
def test_ponder_cost_is_the_mean_of_steps_and_remainder_over_tokens_without_padding(name):
    model = UNIVERSALS[name]
    params = random_parameters(model, SOURCES, TARGETS)
    terms = ponder_terms(model, params)
    assert {name: int(count) for name, (_, count) in terms.items()} == {
        "encoder.output.ponder": 10,
        "decoder.output.ponder": 8,
    }
    rows = [(SOURCES[0], TARGETS[0]), (SOURCES[1, :4], TARGETS[1, :2])]
    costs = [universal_transformer(model.config, params, *row)[1:] for row in rows]
    for side, each in zip(("encoder", "decoder"), zip(*costs, strict=True), strict=True):
        expected = model.config.ponder_cost * np.concatenate(each).sum()
        np.testing.assert_allclose(terms[f"{side}.output.ponder"][0], expected, rtol=1e-5)
    padded_sources, padded_targets = (
        np.where(segments > 0, tokens, 7)
        for segments, tokens in ((SOURCES > 0, SOURCES), (TARGET_SEGMENTS, TARGETS))
    )
    others = ponder_terms(model, params, padded_sources, padded_targets)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), others, terms)


@pytest.mark.long
def test_gradient_of_the_ponder_cost_makes_positions_halt_earlier():
    model = UNIVERSALS["halting"]
    params = random_parameters(model, SOURCES, TARGETS)
    run = ponder_terms.__wrapped__
    gradient = quick_jit(jax.grad(lambda params: run(model, params)["encoder.output.ponder"][0]))(params)
    # Larger probabilities leave a smaller remainder.
    assert gradient["encoder"]["output"]["halt"]["bias"][0] < 0


@pytest.mark.long
def test_observers_read_the_steps_of_each_position():
    model = UNIVERSALS["halting"]
    params = random_parameters(model, SOURCES, TARGETS)
    names = ["encoder.output.steps", "encoder.output.weights"]
    _, reads = interpret.run(model, params, SOURCES, TARGETS, read=names)
    steps, weights = (reads[name] for name in names)
    assert steps.shape == (2, 6)
    np.testing.assert_array_equal(steps, (weights > 0).sum(-1))


@pytest.mark.long
@pytest.mark.parametrize("name", ["sinusoids", "halting", "scan"])
def test_model_equals_numpy_sentence_by_sentence(name):
    model = UNIVERSALS[name]
    params = random_parameters(model, SOURCES, TARGETS)
    found = quick_jit(lambda params: model.apply({"params": params}, SOURCES, TARGETS, train=False))(params)
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        expected, *_ = universal_transformer(model.config, params, source[source > 0], target)
        np.testing.assert_allclose(found[row], expected, atol=1e-4)


def test_odd_width_with_sinusoidal_steps_is_an_error():
    fields = {"d_model": 15, "heads": 3, "positions": "none"}
    UniversalConfig(**fields, step_signal="learned")
    with pytest.raises(UserError, match=r"model\.d_model.*15"):
        dataclasses.replace(UniversalConfig(), **fields)
