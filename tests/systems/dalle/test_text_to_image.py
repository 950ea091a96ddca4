"""Tests of images from texts: captions, completed pictures, reranking, masks and observations."""

import dataclasses
import types

import jax
import numpy as np
import pytest
import sklearn.datasets

from tests.systems.dalle import numpy_dalle, numpy_dvae
from tests.tasks import cases
from tfm.data.batches.generated import EVALUATION
from tfm.decoding.config import GenerationConfig
from tfm.errors import UserError
from tfm.models import TransformerConfig
from tfm.systems.dalle import first_stage, text_to_image
from tfm.systems.dalle.captions import (
    RELATIONS,
    WORDS,
    CaptionedDigits,
    CaptionsConfig,
    describe_text,
    parse_text,
)
from tfm.testing.models import quick_jit
from tfm.testing.parameters import random_parameters
from tfm.training.task import Context

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


class Reader:
    """A judge that knows scikit-learn's digits by heart."""

    def __init__(self):
        self._digits = sklearn.datasets.load_digits()

    def judge(self, images):
        """Returns the probabilities of the classes [N, 10] of images [N, 8, 8, 1], and no features."""
        shades = 8 * (images + 1).reshape(len(images), 1, 64)
        distances = np.abs(shades - self._digits.data).sum(-1)
        return np.eye(10)[self._digits.target[distances.argmin(-1)]], None


@pytest.fixture(scope="module")
def reading_task(task):
    return text_to_image.TextToImage(task.config, task.first_stage, Reader())


@pytest.fixture(scope="module")
def random_variables(task):
    """Returns variables with which the tokens have very different probabilities."""
    return {"params": random_parameters(task.model, np.zeros((1, 5), int), deviation=0.4)}


def reference_sums(task, params, text, images):
    """Returns negative log probabilities of the words, and of the codes, of each picture [B]."""
    sizes = {"groups": cases.DVAE.groups, "blocks": cases.DVAE.blocks}
    autoencoder = task.first_stage.variables["params"]["encoder"]
    codes = numpy_dvae.encode(autoencoder, images, **sizes).argmax(-1).reshape(len(images), -1)
    start = np.ones((len(images), 1), int)
    tokens = np.concatenate([start, text, cases.DALLE.text_vocabulary + codes], axis=1)
    kinds = ("row", "convolution")
    log_probabilities = numpy_dalle.log_probabilities(params, tokens, cases.DALLE, kinds)
    return numpy_dalle.nll_sums(log_probabilities, tokens, 5)


def test_loss_equals_numpy_and_gives_the_text_an_eighth(task, random_variables, batch):
    padded = {name: np.pad(x[:2], ((0, 1), *[(0, 0)] * (x.ndim - 1))) for name, x in batch.items()}

    @quick_jit
    def loss(variables, constants):
        return task.loss(variables, padded, Context(constants=constants))

    output = loss(random_variables, task.constants())
    params = random_variables["params"]
    text, image = reference_sums(task, params, batch["text"][:2], batch["images"][:2]).sum(-1)
    assert output.metrics["text_nll"] == pytest.approx((text, 2 * 5), rel=1e-4)
    assert output.metrics["image_nll"] == pytest.approx((image, 2 * 16), rel=1e-4)
    assert output.terms["text"] == pytest.approx((text / 8, 2 * 5), rel=1e-4)
    assert output.terms["image"] == pytest.approx((image * 7 / 8, 2 * 16), rel=1e-4)


def test_codes_are_read_and_drawn_row_by_row(task, batch):
    stage, sizes = task.first_stage, {"groups": cases.DVAE.groups, "blocks": cases.DVAE.blocks}
    params, images = stage.variables["params"], batch["images"][:2]
    expected = numpy_dvae.encode(params["encoder"], images, **sizes).argmax(-1)
    codes = stage.encode(images)
    np.testing.assert_array_equal(codes, expected.reshape(2, 16))
    restored = numpy_dvae.draw(params, expected, **sizes)
    np.testing.assert_allclose(stage.decode(codes), restored, atol=1e-5)


def test_codes_and_pictures_of_many_rows_are_computed_in_batches(task, batch, monkeypatch):
    codes = task.first_stage.encode(batch["images"])
    pictures = task.first_stage.decode(codes)
    monkeypatch.setattr(first_stage, "BATCH_SIZE", 4)
    np.testing.assert_array_equal(task.first_stage.encode(batch["images"]), codes)
    np.testing.assert_allclose(task.first_stage.decode(codes), pictures, atol=1e-6)


def test_pictures_show_their_own_captions_and_not_those_of_others(reading_task, batch):
    assert reading_task.check(batch["images"], batch["text"]).all()
    assert not reading_task.check(batch["images"], np.roll(batch["text"], 1, axis=0)).any()


class Copies:
    """A first stage whose codes are numbers of pictures."""

    def __init__(self, images):
        self._images = images

    def encode(self, images):
        """Returns 16 times the number of each picture."""
        return np.array([[np.abs(self._images - image).sum((1, 2, 3)).argmin()] * 16 for image in images])

    def decode(self, codes):
        """Returns the pictures of the last codes."""
        return self._images[codes[:, -1]]


class Copying(text_to_image.TextToImage):
    """A task that draws right pictures for the first captions only, and reports its calls."""

    def draw_codes(self, variables, texts, first_codes=None):
        if first_codes is not None:
            self.first_codes = first_codes
            return np.zeros((len(texts), 16), int)
        return np.minimum(np.arange(len(texts)), 3)[:, None] * np.ones(16, int)


@pytest.fixture(scope="module")
def validation():
    """Returns the batch of the pictures of the validation split."""
    pictures = CaptionedDigits("validation")
    return pictures.assemble([pictures.make(EVALUATION, index) for index in range(5)], 5)


@pytest.fixture(scope="module")
def copying(task, validation):
    config = dataclasses.replace(task.config, validation_samples=3)
    copying = Copying(config, Copies(validation["images"]), Reader())
    copying.first_stage.module = task.first_stage.module
    copying.first_stage.variables = task.first_stage.variables
    return copying


def test_evaluation_counts_satisfied_captions_and_completes_upper_halves(copying, variables, validation):
    evaluation = copying.evaluate(variables, copying.open_data())
    assert evaluation.scores["validation/satisfied"] == 0.8  # the last picture shows another caption
    np.testing.assert_array_equal(copying.first_codes, np.arange(3)[:, None] * np.ones(8))
    assert [row["satisfied"] for row in evaluation.samples.rows] == ["yes"] * 3
    figures = evaluation.samples.pictures
    np.testing.assert_array_equal(figures["drawn"].args[0], validation["images"][:3])
    completed = np.concatenate([validation["images"][:3], validation["images"][[0, 0, 0]]])
    np.testing.assert_array_equal(figures["completed"].args[0], completed)


def test_report_has_nats_of_a_caption_and_of_a_code(task, copying, random_variables, validation):
    (report,) = copying.report(random_variables, "validation")
    sums = reference_sums(task, random_variables["params"], validation["text"], validation["images"])
    values = {score.name: score.value for score in report.scores}
    assert values == {
        "satisfied captions": pytest.approx(80),
        "nats of a caption": pytest.approx(sums[0].sum() / 5, rel=1e-4),
        "nats of a code": pytest.approx(sums[1].sum() / (5 * 16), rel=1e-4),
    }
    assert report.outputs == ["yes"] * 4 + ["no"]


def test_text_has_the_weight_of_the_paper():
    assert text_to_image.Config().text_weight == 1 / 8


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
    config = types.SimpleNamespace(model=TransformerConfig(), data=CaptionsConfig())
    with pytest.raises(UserError, match=r"model\.text_vocabulary to be \d+ .*got None"):
        text_to_image.create(config, str(tmp_path))
