"""Tests of images from texts: captions, completed pictures, reranking, masks and observations."""

import dataclasses
import types

import jax
import numpy as np
import pytest

from tests.tasks import cases
from tfm.decoding.config import GenerationConfig
from tfm.errors import UserError
from tfm.models import TransformerConfig
from tfm.systems.dalle import text_to_image
from tfm.systems.dalle.captions import RELATIONS, WORDS, CaptionedDigits, describe_text, parse_text
from tfm.testing.models import quick_jit

CAPTION = "red three left of blue seven"


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("captions")
    return text_to_image.create(cases.make_text_to_image(cases.DALLE, folder), str(folder / "run"))


@pytest.fixture(scope="module")
def variables(task):
    return quick_jit(task.init)(jax.random.key(0))


@pytest.fixture(scope="module")
def batch():
    captions = CaptionedDigits("test")
    return captions.assemble([captions.make(number) for number in range(6)], 6)


def test_captions_are_read_as_they_are_written(batch):
    for text in batch["text"]:
        np.testing.assert_array_equal(parse_text(describe_text(text)), text)
    assert describe_text(parse_text("red  three left of  blue seven")) == CAPTION


@pytest.mark.parametrize("caption", ["", "red three", "red three left blue seven", f"{CAPTION} green one"])
def test_other_texts_are_no_captions_and_the_message_lists_the_words(caption):
    with pytest.raises(UserError, match=r"red three left of blue seven.*nine, left of") as error:
        parse_text(caption)
    assert all(word in str(error.value) for word in (*WORDS, *RELATIONS))


def test_completed_pictures_keep_the_codes_of_the_upper_part(task, variables, batch):
    codes = task.first_stage.encode(batch["images"])
    half = codes[:, : codes.shape[1] // 2]
    completed = task.draw_codes(variables, batch["text"], half)
    np.testing.assert_array_equal(completed[:, : half.shape[1]], half)
    assert completed.shape == codes.shape
    assert completed.min() >= 0
    assert completed.max() < task.config.model.codes


def test_more_samples_give_pictures_that_the_model_finds_at_least_as_probable(task, variables, batch):
    def score(samples):
        decoding = GenerationConfig(samples=samples, batch_size=4)
        task_of_samples = text_to_image.TextToImage(
            dataclasses.replace(task.config, decoding=decoding), task.first_stage, None
        )
        codes = task_of_samples.draw_codes(variables, batch["text"])
        row = text_to_image.make_inputs(batch["text"], codes, task.config.model)
        log_probabilities = jax.nn.log_softmax(task.model.apply(variables, row[:, :-1], train=False))
        return np.take_along_axis(np.asarray(log_probabilities), np.asarray(row[:, 1:, None]), 2).sum(1)

    assert score(8).mean() > score(1).mean()


def test_observation_has_a_row_of_weights_for_each_word_and_code(task, variables):
    observation = task.observe(variables, CAPTION, 64)
    tokens = observation.tracks["tokens"]
    assert tokens.labels[:6] == ["start", "red", "three", "left of", "blue", "seven"]
    assert tokens.labels[6:8] == ["row 0, column 0", "row 0, column 1"]
    weights = observation.attention["decoder"].weights
    assert weights.shape[-2:] == (len(tokens.labels), len(tokens.labels))
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    assert not np.triu(weights, 1).any()
    assert observation.result in ("the picture is right", "the picture is wrong")


def test_evaluation_draws_captions_and_completed_pictures(task, variables):
    evaluation = task.evaluate(variables, task.open_data())
    assert list(evaluation.samples.pictures) == ["drawn", "completed"]


def test_model_of_another_kind_is_an_error(tmp_path):
    config = types.SimpleNamespace(model=TransformerConfig())
    with pytest.raises(UserError, match=r"model\.text_vocabulary to be \d+ .*got None"):
        text_to_image.create(config, str(tmp_path))
