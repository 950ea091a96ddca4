"""Tests of the answers to questions about stories."""

import collections

import jax
import numpy as np
import pytest

from tests.support.tiny import train_run
from tfm.data.batches.generated import evaluation_batches
from tfm.systems.memory_network import task as question_answering
from tfm.systems.memory_network.model import MemoryNetworkConfig
from tfm.systems.memory_network.stories import StoriesConfig
from tfm.testing.parameters import random_parameters
from tfm.training.config import TrainingConfig
from tfm.training.loss_calls import mean_metrics
from tfm.training.task import Context


def test_report_measures_each_kind_of_question_and_the_attended_facts():
    config = question_answering.Config(data=StoriesConfig(evaluated=9, batch_size=4))
    task = question_answering.create(config, "")
    stories, questions = np.ones((1, 10, 5), int), np.ones((1, 5), int)
    variables = {"params": random_parameters(task.model, stories, questions)}
    (report,) = task.report(variables, "test")
    scores = {score.name: score.value for score in report.scores}
    found, answers, weights = task.answer(variables, "test")
    right = [story.answer == answer for story, answer in zip(found, answers, strict=True)]
    assert scores["accuracy"] == pytest.approx(100 * np.mean(right))
    assert scores["accuracy, two facts"] == pytest.approx(100 * np.mean(right[1::2]))
    attended = [
        fact in hops.argmax(-1) for story, hops in zip(found, weights, strict=True) for fact in story.facts
    ]
    assert len(attended) == 13
    assert scores["attended facts"] == pytest.approx(100 * np.mean(attended))
    (double,) = task.report((variables, variables), "test")
    assert double.outputs == report.outputs


@pytest.mark.long
def test_evaluation_computes_the_loss_and_the_answers_in_one_pass(monkeypatch):
    model = MemoryNetworkConfig()
    config = question_answering.Config(model=model, data=StoriesConfig(evaluated=50, batch_size=20))
    task = question_answering.create(config, "")
    variables = task.init(jax.random.key(0))
    generator = task.open_data().validation
    expected = mean_metrics(task, variables, evaluation_batches(generator, 50, 20))
    _, answers, weights = task.answer(variables, "validation")
    assembled = []
    assemble = type(generator).assemble

    def count(self, examples, rows):
        assembled.append(len(examples))
        return assemble(self, examples, rows)

    monkeypatch.setattr(type(generator), "assemble", count)
    evaluation = task.evaluate(variables, task.open_data())
    assert assembled == [20, 20, 10]
    assert evaluation.scores == pytest.approx({f"validation/{name}": x for name, x in expected.items()})
    assert [row["answer"] for row in evaluation.samples.rows] == answers[: config.validation_samples]
    drawn = evaluation.samples.pictures["hops"].args[0]
    np.testing.assert_allclose(drawn[0].weights, weights[0][:, : drawn[0].weights.shape[1]], atol=1e-6)


def test_padding_is_no_answer_in_the_accuracy_of_training(monkeypatch):
    task = question_answering.create(question_answering.Config(), "")
    logits = np.array([[9.0, 2, 1], [9, 1, 2], [9, 2, 1]])  # padding is the most probable class
    monkeypatch.setattr(question_answering, "apply_model", lambda *args, **options: (logits, {}))
    answers, weights = np.array([1, 1, 0]), np.array([1.0, 1, 0])
    batch = {"stories": None, "questions": None, "answers": answers, "weights": weights}
    right, count = task.loss({}, batch, Context()).metrics["accuracy"]
    assert (float(right), float(count)) == (1, 2)


@pytest.mark.long
def test_memory_network_learns_to_find_a_fact(tmp_path):
    training = TrainingConfig(
        steps=400, schedule="constant", warmup_steps=20, peak_learning_rate=0.01, eval_every=400, log_every=99
    )
    data = StoriesConfig(kind="one fact", sentences=6, evaluated=200)
    config = question_answering.Config(model=MemoryNetworkConfig(), data=data, training=training)
    scores = dict(collections.ChainMap(*reversed(train_run(config, tmp_path / "run"))))
    assert scores["validation/accuracy"] > 0.9  # 0.17 by chance
    assert list((tmp_path / "run").rglob("*hops.png"))
