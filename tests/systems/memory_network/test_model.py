"""Tests of the end-to-end memory network against its equations."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.cases import MEMORY_NETWORKS
from tests.references.numeric_gradients import assert_gradient_close, cross_entropy
from tests.references.numpy_transformer import wide
from tests.systems.memory_network.numpy_memory_network import memory_network
from tfm.devices.memory import count_elements
from tfm.layers.observe import read_attention
from tfm.systems.memory_network.model import MemoryNetwork, MemoryNetworkConfig
from tfm.testing.models import VOCABULARY, quick_jit
from tfm.testing.parameters import random_parameters

RNG = np.random.default_rng(0)
STORIES, QUESTIONS = RNG.integers(3, VOCABULARY, (3, 6, 5)), RNG.integers(3, VOCABULARY, (3, 5))
STORIES[:, :, 3:][RNG.random((3, 6, 2)) < 0.5] = 0
STORIES[1, 4:] = 0
STORIES[2, 1:] = 0
STORIES[:, :, 3] = np.where(STORIES[:, :, 4] == 0, STORIES[:, :, 3], 0)  # padding follows the words
STORIES[:, :, 4] = 0
QUESTIONS[1, 2:] = 0


@pytest.mark.parametrize("name", MEMORY_NETWORKS)
def test_answers_and_hops_equal_numpy(name):
    model = MEMORY_NETWORKS[name]
    params = random_parameters(model, STORIES, QUESTIONS, deviation=0.7)

    @quick_jit
    def apply(params):
        run = functools.partial(model.apply, {"params": params}, STORIES, QUESTIONS, train=False)
        return read_attention("hops_*.weights", run)

    logits, weights = apply(params)
    for row, (story, question) in enumerate(zip(STORIES, QUESTIONS, strict=True)):
        expected, hops = memory_network(model.config, jax.tree.map(wide, params), story, question)
        np.testing.assert_allclose(logits[row], expected, atol=1e-4)
        filled = int(story.any(-1).sum())
        seen = weights[:, row, 0, 0, max(filled - model.config.memories, 0) : filled]
        np.testing.assert_allclose(seen, hops, atol=1e-5)
        np.testing.assert_allclose(weights[:, row].sum((1, 2, 3)), 1, atol=1e-5)  # nothing else is seen


@pytest.mark.parametrize("name", MEMORY_NETWORKS)
def test_gradients_equal_central_differences_of_numpy(name):
    model, answers = MEMORY_NETWORKS[name], np.array([3, 5, 4])
    params = random_parameters(model, STORIES, QUESTIONS, deviation=0.7)

    def loss(params):
        logits = model.apply({"params": params}, STORIES, QUESTIONS, train=False)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), answers[:, None], 1).sum()

    def reference(params):
        rows = zip(STORIES, QUESTIONS, strict=True)
        return cross_entropy([memory_network(model.config, params, *row)[0] for row in rows], answers)

    assert_gradient_close(quick_jit(jax.grad(loss))(params), reference, params, rtol=1e-4, atol=1e-4)


def test_published_size_is_the_default():
    """Section 4.2: three hops of width 20 over 50 sentences. Four tables of V words, and four of ages.

    A tenth of the sentences are empty ones.
    """
    config = MemoryNetworkConfig()
    assert (config.hops, config.features, config.memories, config.time_noise) == (3, 20, 50, 0.1)
    assert config.position_encoding
    assert config.temporal_encoding
    model, words = MemoryNetwork(config, 180), jax.ShapeDtypeStruct((1, 2, 3), jnp.int32)
    question = jax.ShapeDtypeStruct((1, 3), jnp.int32)
    init = functools.partial(model.init, train=False)
    assert count_elements(jax.eval_shape(init, jax.random.key(0), words, question)) == 4 * (180 + 50) * 20


def test_order_of_words_counts_with_position_encoding_only():
    swapped = STORIES.copy()
    swapped[:, :, :2] = STORIES[:, :, 1::-1]
    for model, differs in zip(MEMORY_NETWORKS.values(), (True, False), strict=True):
        params = random_parameters(model, STORIES, QUESTIONS, deviation=0.7)
        apply = quick_jit(lambda params, x, m=model: m.apply({"params": params}, x, QUESTIONS, train=False))
        difference = np.abs(apply(params, swapped) - apply(params, STORIES)).max()
        assert (difference > 1e-3) == differs


def test_noise_in_training_adds_to_the_age_of_sentences():
    """A tenth of the sentences is followed by an empty one, so the mean step of the ages is 1.1."""
    stories = np.ones((200, 40, 1), int)
    model = MemoryNetwork(MemoryNetworkConfig(), 5)

    def find_ages(train):
        rngs = {"dropout": jax.random.key(0)}
        return model.apply({}, (stories > 0).any(-1), train=train, rngs=rngs, method="_find_ages")

    ages = {train: np.asarray(quick_jit(find_ages, static_argnums=0)(train)) for train in (True, False)}
    np.testing.assert_array_equal(ages[False], np.tile(np.arange(39, -1, -1), (200, 1)))
    steps = -np.diff(ages[True], axis=1)
    assert set(steps.ravel().tolist()) == {1, 2}
    assert steps.mean() == pytest.approx(1.1, abs=0.02)


def test_padding_gets_no_noise_and_does_not_age_the_story():
    """The newest sentence is followed by at most the one empty sentence of its own noise."""
    stories = np.pad(np.ones((2000, 2), int), ((0, 0), (0, 30)))
    model = MemoryNetwork(MemoryNetworkConfig(time_noise=0.25), 5)
    rngs = {"dropout": jax.random.key(0)}
    find_ages = quick_jit(
        lambda stories: model.apply({}, stories > 0, train=True, rngs=rngs, method="_find_ages")
    )
    ages = np.asarray(find_ages(stories))
    assert set(ages[:, 1].tolist()) == {0, 1}
    assert ages[:, 1].mean() == pytest.approx(0.25, abs=0.03)
    assert (ages[:, 0] - ages[:, 1] == 2).mean() == pytest.approx(0.25, abs=0.03)


def apply_in_training(model, params, seed):
    @quick_jit
    def apply(params, rng):
        return model.apply({"params": params}, STORIES, QUESTIONS, train=True, rngs={"dropout": rng})

    return apply(params, jax.random.key(seed))


def test_training_differs_from_evaluation_by_the_noise_of_ages_only():
    model = MEMORY_NETWORKS["three hops"]
    params = random_parameters(model, STORIES, QUESTIONS, deviation=0.7)
    silent = model.clone(config=dataclasses.replace(model.config, time_noise=0.0))
    noisy = model.clone(config=dataclasses.replace(model.config, time_noise=0.5))
    rows = zip(STORIES, QUESTIONS, strict=True)
    expected = [memory_network(model.config, jax.tree.map(wide, params), *row)[0] for row in rows]
    np.testing.assert_allclose(apply_in_training(silent, params, 0), expected, atol=1e-4)
    one, other = (np.asarray(apply_in_training(noisy, params, seed)) for seed in (0, 1))
    assert np.abs(one - expected).max() > 0.01
    assert np.abs(one - other).max() > 0.01


def test_initial_parameters_are_normal_with_a_deviation_of_a_tenth():
    """Section 4.2. A twentieth of normal numbers is more than two deviations from the mean."""
    model = MemoryNetwork(MemoryNetworkConfig(memories=100), 200)
    params = quick_jit(functools.partial(model.init, train=False))(jax.random.key(0), STORIES, QUESTIONS)
    for x in jax.tree.leaves(params):
        assert x.mean() == pytest.approx(0, abs=0.01)
        assert x.std() == pytest.approx(0.1, rel=0.05)
        assert (np.abs(x) > 0.2).mean() == pytest.approx(0.0455, abs=0.015)
