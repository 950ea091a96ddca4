"""Tests that every task fulfils the contract of tasks."""

import numpy as np
import pytest

from tests.tasks.cases import TASKS
from tfm.data.sources.opening import open_pairs
from tfm.family import MODELS
from tfm.family import TASKS as ALL_TASKS
from tfm.testing.tasks import TaskContract


class TestTranslation(TaskContract):
    cases, test_examples = TASKS["translation"], 20
    text_track = "source"

    @staticmethod
    def read_tokens(batch):
        return batch["inputs"]


@pytest.mark.long
class TestClassification(TaskContract):
    cases, test_examples = TASKS["image_classification"], 5


@pytest.mark.long
class TestLanguageModeling(TaskContract):
    cases, test_examples = TASKS["language_modeling"], 8
    text_track = "predicted"

    @staticmethod
    def read_tokens(batch):
        return batch["targets"]


@pytest.mark.long
class TestSummarization(TaskContract):
    cases, test_examples = TASKS["summarization"], 8


@pytest.mark.long
class TestImageGeneration(TaskContract):
    cases, test_examples = TASKS["image_generation"], 5


@pytest.mark.long
class TestDetection(TaskContract):
    cases, test_examples = TASKS["detection"], 5


@pytest.mark.long
class TestImageTokens(TaskContract):
    cases, test_examples = TASKS["image_tokens"], 5


@pytest.mark.long
class TestTextToImage(TaskContract):
    cases, test_examples = TASKS["text_to_image"], 5


@pytest.mark.long
class TestWordVectors(TaskContract):
    cases, test_examples = TASKS["word_vectors"], 24
    learning_rate = 0.1


@pytest.mark.long
class TestQuestionAnswering(TaskContract):
    cases, test_examples = TASKS["question_answering"], 7


@pytest.mark.long
class TestParsing(TaskContract):
    cases, test_examples = TASKS["parsing"], 5


@pytest.mark.long
class TestMaskedLanguageModeling(TaskContract):
    cases, test_examples = TASKS["masked_language_modeling"], 16
    text_track = "predicted"

    @staticmethod
    def read_tokens(batch):
        tokens = batch["tokens"].copy()
        rows, places = np.nonzero(batch["weights"])
        tokens[rows, batch["predicted"][rows, places]] = batch["targets"][rows, places]
        return tokens


@pytest.mark.long
class TestTextClassification(TaskContract):
    cases, test_examples = TASKS["text_classification"], 9
    text_track = "read"

    @staticmethod
    def read_example(data):
        return " ||| ".join(open_pairs(data, "train")[0][:-1])


def test_every_task_has_a_contract():
    covered = [cls.cases for cls in TaskContract.__subclasses__()]
    assert ALL_TASKS.keys() == TASKS.keys()
    assert all(cases in covered for cases in TASKS.values())


def test_every_model_is_trained_in_a_case():
    trained = {case.partition(",")[0] for cases in TASKS.values() for case in cases}
    without_dropout = {"resnet"}  # the contract needs dropout; see tests/systems/detr/test_resnet.py
    assert trained | without_dropout == MODELS.keys()
