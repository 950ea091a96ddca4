"""Tests of word2vec: its pairs, its noise, its loss against the authors' update rule, and its questions."""

import collections
import dataclasses
import functools
import itertools
import json

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from tests.support.tiny import train_run
from tfm.devices.memory import count_elements
from tfm.errors import UserError
from tfm.systems.word2vec import task as word_vectors
from tfm.systems.word2vec.model import Word2Vec, Word2VecConfig
from tfm.systems.word2vec.skip_grams import (
    SkipGramBatches,
    SkipGramsConfig,
    count_words,
    keep_probabilities,
    make_pairs,
    number_sentences,
)
from tfm.systems.word2vec.word_map import project
from tfm.systems.word2vec.word_questions import (
    find_neighbours,
    list_pairs,
    make_analogies,
    read_word_classes,
    solve_analogies,
)
from tfm.testing.models import quick_jit
from tfm.training.config import TrainingConfig
from tfm.training.task import Context

COUNTS = {"the": 60, "dog": 20, "cat": 15, "runs": 5}


def make_task(**fields):
    config = word_vectors.Config(model=Word2VecConfig(features=3), **fields)
    return word_vectors.WordVectors(config, COUNTS, "")


def test_pairs_are_the_words_within_reach_of_a_center():
    rng = np.random.default_rng(0)
    words, sentences = rng.integers(0, 9, 40), np.repeat([0, 1, 2, 3], [12, 1, 20, 7])
    reach = rng.integers(1, 5, 40)
    expected = [
        (words[i], words[j])
        for i, j in itertools.permutations(range(40), 2)
        if sentences[i] == sentences[j] and abs(i - j) <= reach[i]
    ]
    assert sorted(map(tuple, make_pairs(words, sentences, reach).tolist())) == sorted(expected)
    assert make_pairs(words[:0], sentences[:0], reach[:0]).shape == (0, 2)


def test_frequent_words_are_removed_at_random():
    """A word of frequency f stays with probability sqrt(t / f)."""
    config = SkipGramsConfig(minimum_count=1, window=1, subsampling=0.01, batch_size=6000)
    sentences = [["the", "dog"]] * 90 + [["the", "cat"]] * 10
    counts = count_words(sentences, 1)
    assert counts == {"the": 100, "dog": 90, "cat": 10}
    keep = keep_probabilities(np.array([100, 90, 10]), 0.01)
    np.testing.assert_allclose(keep, [0.02**0.5, (0.02 / 0.9) ** 0.5, 0.2**0.5])
    batch = SkipGramBatches(number_sentences(sentences, counts), counts, config, seed=0).batch(0)
    assert (batch["weights"] == 1).sum() < 6000  # few sentences keep both words
    centers = batch["centers"][batch["weights"] == 1]
    share = (centers == 2).sum() / ((centers == 1).sum() + (centers == 2).sum())
    assert share == pytest.approx(10 * keep[2] / (10 * keep[2] + 90 * keep[1]), abs=0.05)


def test_noise_is_proportional_to_the_counts_to_the_power_of_three_quarters():
    noise = np.diff(make_task().constants()["noise"], prepend=0)
    expected = np.array([60, 20, 15, 5]) ** 0.75
    np.testing.assert_allclose(noise, expected / expected.sum(), rtol=1e-5)
    np.testing.assert_allclose(noise.sum(), 1, rtol=1e-6)


def update_like_the_authors(centers, contexts, pairs, noise):
    """Returns the loss and the sums of all changes at a rate of 1, in a loop like word2vec.c.

    The original changes the vectors after each pair. Here, all pairs see the vectors of the beginning.
    """
    changes, loss = [np.zeros_like(centers), np.zeros_like(contexts)], 0.0
    for (center, context), negatives in zip(pairs, noise, strict=True):
        for word, label in [(context, 1), *((word, 0) for word in negatives if word != context)]:
            product = centers[center] @ contexts[word]
            probability = 1 / (1 + np.exp(-product))
            loss -= np.log(probability if label else 1 - probability)
            changes[0][center] += (label - probability) * contexts[word]
            changes[1][word] += (label - probability) * centers[center]
    return loss, changes


def test_loss_and_gradient_equal_the_update_rule_of_the_authors():
    rng = np.random.default_rng(0)
    task = make_task(negatives=6)
    params = {name: rng.normal(size=(4, 3)).astype(np.float32) for name in ("centers", "contexts")}
    pairs = rng.integers(0, 4, (5, 2))
    weights = np.array([1, 1, 0, 1, 1], np.float32)  # 0 is padding
    batch = {"centers": pairs[:, 0], "contexts": pairs[:, 1], "weights": weights}

    def compute(params):
        context = Context(constants=task.constants())
        return task.loss({"params": params}, batch, context).terms["loss"]

    (loss, count), gradient = quick_jit(jax.value_and_grad(compute, has_aux=True))(params)
    assert count == 4
    draws = np.asarray(jax.random.uniform(jax.random.key(word_vectors.EVALUATION_SEED), (5, 6)))
    noise = (draws[..., None] >= task.constants()["noise"]).sum(-1)
    pairs, noise = pairs[weights > 0], noise[weights > 0]
    assert (noise == pairs[:, 1:]).any()  # some noise equals its context
    wide = [params[name].astype(float) for name in ("centers", "contexts")]
    expected, changes = update_like_the_authors(*wide, pairs, noise)
    assert loss == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(gradient["centers"], -changes[0], atol=1e-5)
    np.testing.assert_allclose(gradient["contexts"], -changes[1], atol=1e-5)


def draw_noise(task, monkeypatch, rng=None):
    """Returns the noise words [B, K] of a loss over 3000 pairs, in training if `rng` is a key."""
    contexts = []

    def record(model, variables, centers, words, *, context):
        contexts.append(np.asarray(words))
        return np.zeros(words.shape, np.float32), {}

    monkeypatch.setattr(word_vectors, "apply_model", record)
    pairs = np.zeros((2, 3000), np.int32)
    batch = {"centers": pairs[0], "contexts": pairs[1], "weights": np.ones(3000, np.float32)}
    task.loss({}, batch, Context(rng=rng, constants=task.constants()))
    return contexts[0][:, 1:]


def test_noise_words_have_the_frequencies_of_the_noise(monkeypatch):
    noise = draw_noise(make_task(negatives=4), monkeypatch, jax.random.key(3))
    assert noise.shape == (3000, 4)
    expected = np.array([60, 20, 15, 5]) ** 0.75
    for column in noise.T:
        np.testing.assert_allclose(np.bincount(column) / 3000, expected / expected.sum(), atol=0.03)


def test_noise_follows_the_key_in_training_and_is_constant_in_evaluation(monkeypatch):
    keys = (None, None, jax.random.key(0), jax.random.key(0), jax.random.key(1))
    constant, again, one, same, other = (draw_noise(make_task(), monkeypatch, key) for key in keys)
    np.testing.assert_array_equal(constant, again)
    np.testing.assert_array_equal(one, same)
    assert (one != other).mean() > 0.4
    assert (one != constant).mean() > 0.4


def test_initial_vectors_are_those_of_the_authors():
    """word2vec.c draws the vectors uniformly from -0.5 / D to 0.5 / D, and the context vectors are 0."""
    init = quick_jit(functools.partial(Word2Vec(Word2VecConfig(features=20), 500).init, train=False))
    params = init(jax.random.key(0), np.zeros(1, int), np.zeros((1, 1), int))["params"]
    assert not params["contexts"].any()
    shares = np.histogram(params["centers"], bins=5, range=(-0.5 / 20, 0.5 / 20))[0] / 10_000
    np.testing.assert_allclose(shares, 0.2, atol=0.02)


def test_published_vectors_have_300_features():
    """Mikolov et al. 2013, section 4: 692,000 words."""
    model = Word2Vec(Word2VecConfig(), 692_000)
    arguments = jax.ShapeDtypeStruct((1,), np.int32), jax.ShapeDtypeStruct((1, 1), np.int32)
    shapes = jax.eval_shape(lambda *a: model.init(jax.random.key(0), *a, train=False), *arguments)
    assert count_elements(shapes) == 2 * 692_000 * 300


def test_analogies_are_solved_by_adding_the_difference():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(30, 8))
    questions = np.array([rng.choice(30, 3, replace=False) for _ in range(20)])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for (a, b, c), answer in zip(questions, solve_analogies(vectors, questions), strict=True):
        goal = unit[b] - unit[a] + unit[c]
        assert answer == max(set(range(30)) - {a, b, c}, key=lambda word: unit[word] @ goal)
    for word, (first, second) in zip((3, 7), find_neighbours(vectors, [3, 7], 2), strict=True):
        others = sorted(set(range(30)) - {word}, key=lambda other: -(unit[other] @ unit[word]))
        assert [first, second] == others[:2]


def test_projection_keeps_the_distances_of_points_in_a_plane():
    rng = np.random.default_rng(0)
    plane = rng.normal(size=(12, 2)) @ rng.normal(size=(2, 6))
    distances = [np.linalg.norm(x[:, None] - x, axis=-1) for x in (plane, project(plane))]
    np.testing.assert_allclose(distances[1], distances[0], atol=1e-9)


def test_analogies_of_the_built_in_language_have_pairs_of_one_relation():
    assert ("dog", "dogs") in list_pairs("plural")
    assert {("want", "wants"), ("explore", "explores")} <= set(list_pairs("third person"))
    assert {("want", "wanted"), ("explore", "explored")} <= set(list_pairs("past"))
    assert [read_word_classes()[word] for word in ("dog", "dogs", "wanted")] == ["NN", "NNS", "VBD"]
    pairs = {}
    for split in ("validation", "test"):
        questions = make_analogies(split)
        assert all({q[1:3], q[3:]} <= set(list_pairs(q.relation)) for q in questions)
        assert all(q[1:3] != q[3:] for q in questions)
        pairs[split] = {q[1:3] for q in questions}
    assert not pairs["validation"] & pairs["test"]
    with pytest.raises(UserError, match="'train'"):
        make_analogies("train")


def test_vocabulary_without_analogies_is_an_error_before_the_first_step(tmp_path):
    config = word_vectors.Config(data=SkipGramsConfig(sentences=5))
    with pytest.raises(UserError, match=r"data\.sentences \(now 5\).*data\.minimum_count \(now \d+\)"):
        word_vectors.create(config, str(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ["", "[1, 2]", '[["a", "b"]]', '{"a": 1.5}'])
def test_damaged_words_are_an_error(content, tmp_path):
    (tmp_path / "words.json").write_text(content)
    with pytest.raises(UserError, match=r"words\.json"):
        word_vectors.create(word_vectors.Config(), str(tmp_path), new=False)
    with pytest.raises(UserError, match=r"words\.json.*missing"):
        word_vectors.create(word_vectors.Config(), str(tmp_path / "empty"), new=False)


def test_words_of_a_run_are_ordered_by_their_counts(tmp_path):
    config = word_vectors.Config(data=SkipGramsConfig(sentences=2000))
    task = word_vectors.create(config, str(tmp_path))
    counts = [count for _, count in json.loads((tmp_path / "words.json").read_text())]
    assert task.words[0] == "the"
    assert counts == sorted(counts, reverse=True)
    assert min(counts) >= 5


class DividedArray:
    """A stand-in for an array with rows on other hosts, which NumPy cannot read."""

    is_fully_addressable = False

    def __init__(self, values):
        self.values = values

    def __array__(self, *_, **__):
        raise RuntimeError("The array has rows on other hosts.")


@pytest.mark.parametrize("method", ["evaluate", "report"])
def test_vectors_that_are_divided_over_hosts_are_gathered(method, tmp_path, monkeypatch):
    config = word_vectors.Config(data=SkipGramsConfig(sentences=2000), validation_samples=0)
    task = word_vectors.create(config, str(tmp_path))
    vectors = np.random.default_rng(0).normal(size=(len(task.words), 4))
    monkeypatch.setattr(multihost_utils, "process_allgather", lambda x, **_: x.values)

    def answer(centers):
        variables = {"params": {"centers": centers}}
        if method == "evaluate":
            return task.evaluate(variables, None).scores
        return [report.outputs for report in task.report(variables, "validation")]

    assert answer(DividedArray(vectors)) == answer(vectors)


@pytest.mark.long
def test_neighbours_have_the_class_of_a_word_after_a_short_training(tmp_path):
    training = TrainingConfig(
        steps=400, schedule="constant", warmup_steps=20, peak_learning_rate=0.02, eval_every=400, log_every=99
    )
    data = SkipGramsConfig(sentences=10_000, subsampling=1e-3)
    config = word_vectors.Config(model=Word2VecConfig(features=25), data=data, training=training)
    rows = train_run(dataclasses.replace(config, validation_samples=3), tmp_path / "run")
    scores = dict(collections.ChainMap(*reversed(rows)))
    assert scores["validation/class_of_the_neighbours"] > 0.7  # 0.14 by chance
    assert scores["validation/analogies"] > 0.03  # 0.001 by chance
    assert list((tmp_path / "run").rglob("*words.png"))
