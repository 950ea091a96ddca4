"""Tests of the answers to the user's own questions, as `tfm visualize` and `tfm explore` show them."""

import numpy as np
import pytest

from tests.support import babi
from tfm.errors import UserError
from tfm.interpret.observation import FindsUnknown, Observes
from tfm.systems.memory_network import task as question_answering
from tfm.systems.memory_network.model import MemoryNetworkConfig
from tfm.systems.memory_network.stories import StoriesConfig
from tfm.testing.parameters import random_parameters


def make_task(folder, **data):
    config = question_answering.Config(
        model=MemoryNetworkConfig(memories=10), data=StoriesConfig(**({"evaluated": 4} | data))
    )
    task = question_answering.create(config, str(folder))
    story = np.ones((1, 3, 5), int)
    return task, {"params": random_parameters(task.model, story, story[:, 0])}


@pytest.fixture(params=["generated", "babi"])
def case(request, tmp_path):
    """Returns a task with random parameters, on generated stories or on the files of bAbI."""
    if request.param == "generated":
        return make_task(tmp_path)
    (tmp_path / "data").mkdir()
    babi.write_babi(tmp_path / "data")
    return make_task(tmp_path, kind="babi", directory=str(tmp_path / "data"))


def test_the_answer_and_the_attention_equal_those_of_an_evaluation(case):
    task, variables = case
    assert isinstance(task, Observes)
    stories, answers, weights = task.answer(variables, "validation")
    for index, example in enumerate(task.default_examples()):
        observation = task.observe(variables, example, 64)
        count = len(stories[index].sentences)
        assert observation.tracks["sentences"].labels == stories[index].sentences
        assert observation.tracks["question"].labels == [stories[index].question]
        attention = observation.attention["memory"].weights
        np.testing.assert_allclose(attention[:, 0, 0], weights[index][:, :count], atol=1e-5)
        if answers[index] in task.vocabulary.answers:
            assert observation.result == answers[index]
        assert observation.result == observation.predictions[0].choices[0][0]
        assert {answer for answer, _ in observation.predictions[0].choices} <= set(task.vocabulary.answers)


def test_unknown_words_are_named_and_left_out(tmp_path, caplog):
    task, variables = make_task(tmp_path)
    assert isinstance(task, FindsUnknown)
    own = "Mary moved to the garden.\nMy aunt moved to the hall.\nWhere is Mary?"
    assert task.find_unknown(own) == ["my", "aunt"]
    observation = task.observe(variables, own, 64)
    assert "my, aunt" in caplog.text
    assert observation.title == "where is mary?"
    without = task.observe(variables, own.replace("My aunt ", ""), 64)
    assert observation.predictions == without.predictions


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "a story and a question"),
        ("Where is Mary?", "a story and a question"),
        ("Mary moved to the hall. Wo?", "no word of the question 'wo'"),
    ],
)
def test_texts_without_story_or_question_are_errors(tmp_path, text, problem):
    task, variables = make_task(tmp_path)
    with pytest.raises(UserError, match=problem):
        task.observe(variables, text, 64)
