"""Tests of the loss, the answers, the scores and the pictures of a memory network against NumPy."""

import dataclasses

import jax
import numpy as np
import pytest

from tests.references.numeric_gradients import assert_gradient_close, cross_entropy
from tests.references.numpy_transformer import wide
from tests.systems.memory_network.numpy_memory_network import memory_network
from tfm.data.batches.generated import EVALUATION
from tfm.systems.memory_network import hops
from tfm.systems.memory_network import task as question_answering
from tfm.systems.memory_network.hops import Hops, draw_hops
from tfm.systems.memory_network.model import MemoryNetworkConfig
from tfm.systems.memory_network.stories import PLACES, WORDS, Stories, StoriesConfig
from tfm.testing.models import quick_jit
from tfm.testing.parameters import random_parameters
from tfm.training.config import TrainingConfig
from tfm.training.task import Context

COUNT = 31


@pytest.fixture(scope="module")
def task():
    config = question_answering.Config(
        model=MemoryNetworkConfig(features=6, hops=2, memories=4),
        data=StoriesConfig(sentences=6, batch_size=12, evaluated=COUNT),
        training=TrainingConfig(seed=7),
        validation_samples=8,
    )
    return question_answering.create(config, "")


@pytest.fixture(scope="module")
def members(task):
    """Returns the parameters of two models whose answers are mostly places, so that some are right."""
    story = np.ones((1, 6, 5), int)
    members = [random_parameters(task.model, story, story[:, 0], deviation=1.0, seed=seed) for seed in (0, 1)]
    for params in members:
        params["words_2"][read_ids(" ".join(PLACES))] *= 3
    return members


def read_ids(text):
    return [WORDS.index(word) + 1 for word in text.split()]


def answer(task, params, story):
    """Returns the logits [V] for a story in words, and the weights [hops, S] of its sentences, in NumPy."""
    sentences = [read_ids(sentence) for sentence in story.sentences]
    return memory_network(task.config.model, jax.tree.map(wide, params), sentences, read_ids(story.question))


def find_stories(task, split):
    generator = Stories(task.config.data, split)
    return [generator.make(EVALUATION, index) for index in range(COUNT)]


def softmax(logits):
    exponentials = np.exp(logits - logits.max())
    return exponentials / exponentials.sum()


def test_loss_and_gradient_equal_numpy_without_padding(task, members):
    stories = find_stories(task, "train")[:3]
    batch = Stories(task.config.data, "train").assemble(stories, 5)
    answers = [WORDS.index(story.answer) + 1 for story in stories]

    @quick_jit
    def compute(params):
        def loss(params):
            output = task.loss({"params": params}, batch, Context())
            return output.terms["loss"][0], output

        return jax.grad(loss, has_aux=True)(params)

    def reference(params):
        return cross_entropy([answer(task, params, story)[0] for story in stories], answers)

    gradient, output = compute(members[0])
    total, count = output.terms["loss"]
    assert count == 3
    assert total == pytest.approx(reference(members[0]), rel=1e-5)
    assert output.metrics["nll"] == (total, count)
    best = [answer(task, members[0], story)[0][1:].argmax() + 1 for story in stories]
    assert output.metrics["accuracy"] == (np.equal(best, answers).sum(), 3)
    assert_gradient_close(gradient, reference, members[0], rtol=1e-4, atol=1e-4)


def test_model_answers_with_each_word_or_padding(task, members):
    assert members[0]["words_0"].shape == (len(WORDS) + 1, 6)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_answers_and_weights_equal_numpy(split, task, members):
    stories, answers, weights = task.answer({"params": members[0]}, split)
    assert stories == find_stories(task, split)
    for story, word, actual in zip(stories, answers, weights, strict=True):
        logits, expected = answer(task, members[0], story)
        assert word == WORDS[logits[1:].argmax()]
        count = len(story.sentences)
        np.testing.assert_allclose(actual[:, max(count - 4, 0) : count], expected, atol=1e-5)
        np.testing.assert_allclose(actual.sum(1), 1, atol=1e-5)


def test_ensemble_answers_by_the_mean_of_its_probabilities_and_weights(task, members):
    config = dataclasses.replace(task.config, data=StoriesConfig(sentences=6, batch_size=20, evaluated=60))
    members = [
        {name: 0.6 * x for name, x in params.items()} for params in members
    ]  # so that no answer is sure
    stories, answers, weights = question_answering.create(config, "").answer(
        tuple({"params": params} for params in members), "test"
    )
    by_logits = []
    for story, word, actual in zip(stories, answers, weights, strict=True):
        results = [answer(task, params, story) for params in members]
        assert word == WORDS[np.mean([softmax(logits) for logits, _ in results], 0)[1:].argmax()]
        by_logits.append(WORDS[np.mean([logits for logits, _ in results], 0)[1:].argmax()])
        count = len(story.sentences)
        expected = np.mean([weights for _, weights in results], 0)
        np.testing.assert_allclose(actual[:, max(count - 4, 0) : count], expected, atol=1e-5)
    assert by_logits != answers  # the mean of logits would give other answers


def score(task, params, split):
    """Returns the scores in per cent of NumPy's answers."""
    right, hits = {"accuracy": []}, []
    for story in find_stories(task, split):
        logits, weights = answer(task, params, story)
        is_right = WORDS[logits[1:].argmax()] == story.answer
        right["accuracy"].append(is_right)
        right.setdefault(f"accuracy, {story.kind}", []).append(is_right)
        forgotten = len(story.sentences) - weights.shape[1]
        attended = {forgotten + hop.argmax() for hop in weights}
        hits += [fact in attended for fact in story.facts]
    right["attended facts"] = hits
    return {name: 100 * np.mean(values) for name, values in right.items()}


@pytest.mark.parametrize("split", ["validation", "test"])
def test_scores_of_a_report_equal_numpy(split, task, members):
    (report,) = task.report({"params": members[0]}, split)
    expected = score(task, members[0], split)
    assert len(set(expected.values())) == len(expected) == 4
    assert {score.name: score.value for score in report.scores} == pytest.approx(expected)
    signatures = {score.name: score.signature for score in report.scores}
    facts = sum(len(story.facts) for story in find_stories(task, split))
    assert signatures["attended facts"].startswith(f"per cent of {facts} facts")
    assert signatures["accuracy, two facts"] == "per cent of 15 questions"
    for story, word, example in zip(find_stories(task, split), report.outputs, report.examples, strict=True):
        assert example == {
            "story": ". ".join(story.sentences),
            "question": story.question,
            "right": story.answer,
            "answer": word,
        }


def test_run_generates_the_stories_of_its_seed_and_its_split(task, members):
    data, generator = task.open_data(), Stories(task.config.data, "train")
    batch = next(data.train_batches(2))
    expected = generator.assemble([generator.make(7, 2, row) for row in range(12)], 12)
    np.testing.assert_equal(batch, expected)
    identities = {
        split: next(task.report({"params": members[0]}, split)).identity for split in ("validation", "test")
    }
    assert data.identity() == {"train": generator.fingerprint, "validation": identities["validation"]}
    assert identities["validation"] != identities["test"]
    assert data.validation.make(EVALUATION, 0) == find_stories(task, "validation")[0]


def draw(monkeypatch, picture):
    """Returns the figure that a function of a path draws."""
    figures = []
    monkeypatch.setattr(hops, "save", lambda figure, path, dpi: figures.append(figure))
    picture("hops.png")
    return figures[0]


def test_evaluation_has_the_share_of_right_answers_and_draws_the_first_stories(task, members, monkeypatch):
    evaluation = task.evaluate({"params": members[0]}, None)
    share = score(task, members[0], "validation")["accuracy"] / 100
    assert evaluation.scores["validation/accuracy"] == pytest.approx(share)
    assert task.best == ("validation/accuracy", "max")
    (report,) = task.report({"params": members[0]}, "validation")
    assert evaluation.samples.rows == report.examples[:8]
    figure = draw(monkeypatch, evaluation.samples.pictures["hops"])
    panels = [axes for axes in figure.axes if axes.images]
    stories = find_stories(task, "validation")[:8]
    titles = set()
    for axes, story, word in zip(panels, stories, report.outputs[:8], strict=True):
        weights = answer(task, members[0], story)[1]
        shown = axes.images[0].get_array()
        assert shown.shape == (len(story.sentences), 2)
        np.testing.assert_allclose(shown[-weights.shape[1] :], weights.T, atol=1e-5)
        right = "" if word == story.answer else f" (right: {story.answer})"
        assert axes.get_title("right") == f"{story.question}?\npredicted: {word}{right}"
        titles.add(bool(right))
    assert titles == {True, False}


def test_picture_shows_each_story_with_its_sentences_and_hops(monkeypatch):
    rng = np.random.default_rng(0)
    stories = [
        Hops(f"title {i}", [f"sentence {i} {j}" for j in range(count)], rng.uniform(0, 0.5, (3, count)))
        for i, count in enumerate((2, 4, 3, 1, 2))
    ]
    figure = draw(monkeypatch, lambda path: draw_hops(stories, path))
    *panels, bar = figure.axes
    assert bar.get_xlabel() == "attention weight"
    for axes, story in zip(panels, stories, strict=True):
        (image,) = axes.images
        np.testing.assert_array_equal(image.get_array(), story.weights.T)
        assert image.get_clim() == (0, 1)  # one scale for all stories
        assert [label.get_text() for label in axes.get_xticklabels()] == ["hop 1", "hop 2", "hop 3"]
        assert [label.get_text() for label in axes.get_yticklabels()] == story.sentences
        assert axes.get_ylim() == (len(story.sentences) - 0.5, -0.5)  # the first sentence is on top
        assert axes.get_title("right") == story.title


def test_dollar_signs_of_a_story_are_not_drawn_as_formulas(tmp_path):
    path = tmp_path / "hops.svg"  # has texts as text
    draw_hops([Hops("a question", ["tea cost $a_b_c$", "milk cost $2 and $3"], np.ones((1, 2)))], str(path))
    assert "tea cost $a_b_c$" in path.read_text()
    assert "milk cost $2 and $3" in path.read_text()
