"""Tests of what the task of detection computes from predictions: losses, probabilities, scores and texts."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tasks import cases
from tfm.data.batches.generated import EVALUATION
from tfm.errors import UserError
from tfm.systems.detr import metrics
from tfm.systems.detr import task as detection
from tfm.systems.detr.model import Detections
from tfm.systems.detr.observe import Objects, describe_objects, make_boxes
from tfm.systems.detr.set_loss import LossWeights, set_loss
from tfm.testing.models import assert_trees_close, quick_jit
from tfm.training.loss_calls import mean_loss_and_metrics
from tfm.training.task import Context

RNG = np.random.default_rng(0)
PREDICTIONS = Detections(
    RNG.normal(0, 3, (2, 4, 3, 11)).astype(np.float32), RNG.uniform(0.2, 0.8, (2, 4, 3, 4)).astype(np.float32)
)


class Constant(nn.Module):
    """A model whose predictions do not depend on the images."""

    def __call__(self, images, valid, *, train):
        return jax.tree.map(jnp.asarray, PREDICTIONS)


@pytest.fixture(scope="module")
def task():
    config = cases.make_detection(cases.DETR, None)
    data = dataclasses.replace(config.data, evaluated=4)
    task = detection.create(dataclasses.replace(config, data=data, validation_samples=3), "")
    task.model = Constant()
    return task


@pytest.fixture(scope="module")
def pictures(task):
    return task.open_data().validation


@pytest.fixture(scope="module")
def batch(pictures):
    batch = pictures.assemble([pictures.make(EVALUATION, index) for index in range(4)], 4)
    for row in range(3):  # the first object of three pictures is found
        PREDICTIONS.boxes[-1, row, 0] = batch["boxes"][row, 0]
        PREDICTIONS.logits[-1, row, 0, batch["labels"][row, 0]] = 15
    return batch


def test_loss_has_the_weights_of_the_config(task, batch):
    fields = {"box_weight": 3.0, "overlap_weight": 1.5, "empty_weight": 0.2}
    other = detection.Detection(dataclasses.replace(task.config, **fields))
    other.model = Constant()
    for one, weights in ((task, LossWeights(5, 2, 0.1)), (other, LossWeights(3.0, 1.5, 0.2))):
        output = quick_jit(lambda batch, one=one: one.loss({"params": {}}, batch, Context()))(batch)
        expected = quick_jit(lambda batch, weights=weights: set_loss(PREDICTIONS, batch, weights))(batch)
        assert_trees_close((output.terms, output.metrics), expected, rtol=1e-5)


def probabilities():
    """Returns the probabilities of the classes of the last layer, without "no object", in float64."""
    weights = np.exp(PREDICTIONS.logits[-1].astype(np.float64))
    return (weights / weights.sum(-1, keepdims=True))[..., :-1]


def test_scores_and_texts_of_an_evaluation_are_those_of_the_most_probable_classes(task, pictures, batch):
    evaluation = task.evaluate({"params": {}}, task.open_data())
    names = [str(digit) for digit in range(10)]
    detected = [
        Objects(PREDICTIONS.boxes[-1, row], shares.argmax(-1), shares.max(-1))
        for row, shares in enumerate(probabilities())
    ]
    truth = [
        Objects(batch["boxes"][row][:count], batch["labels"][row][:count])
        for row, count in enumerate(batch["objects"].sum(1).astype(int))
    ]
    scores = metrics.detection_scores(
        [metrics.Detections(metrics.to_pixels(x.boxes, (16, 16)), x.labels, x.scores) for x in detected],
        [metrics.make_truth(metrics.to_pixels(x.boxes, (16, 16)), x.labels) for x in truth],
    )
    values = {score.name: score.value for score in scores}
    for name in ("AP50", "AP75", "AP"):
        assert evaluation.scores[f"validation/{name.lower()}"] == pytest.approx(values[name] / 100)
    assert [row["true"] for row in evaluation.samples.rows] == [
        describe_objects(objects, names, (16, 16)) for objects in truth[:3]
    ]
    found = [describe_objects(objects, names, (16, 16)) for objects in detected[:3]]
    assert any(found)
    assert values["AP50"] > 0
    assert [row["found"] for row in evaluation.samples.rows] == found
    shown, titles = evaluation.samples.pictures["detected"].args
    np.testing.assert_array_equal(shown, batch["images"][:3])
    assert titles == ["picture 0", "picture 1", "picture 2"]


def test_evaluation_computes_the_loss_and_the_scores_in_one_pass(task, pictures, batch, monkeypatch):
    silent = detection.create(dataclasses.replace(task.config, validation_samples=0), "")
    silent.model = Constant()
    loss, _ = mean_loss_and_metrics(silent, {"params": {}}, [batch])
    assembled = []
    assemble = type(pictures).assemble

    def count(self, examples, rows):
        assembled.append(len(examples))
        return assemble(self, examples, rows)

    monkeypatch.setattr(type(pictures), "assemble", count)
    evaluation = silent.evaluate({"params": {}}, silent.open_data())
    assert assembled == [4]
    assert evaluation.scores["validation/loss"] == pytest.approx(loss)


def test_only_objects_with_a_score_of_at_least_a_half_are_shown():
    boxes = np.array([[0.75, 0.5, 0.5, 0.2], [0.25, 0.5, 0.1, 0.2], [0.5, 0.5, 0.1, 0.1]])
    objects = Objects(boxes, np.array([1, 0, 1]), np.array([0.5, 0.9, 0.49]))
    shown = make_boxes(objects, ["cat", "dog"])
    assert [(box.text, box.colour) for box in shown] == [("dog", 1), ("cat", 0)]
    np.testing.assert_allclose([box.place for box in shown], [[0.5, 0.4, 1, 0.6], [0.2, 0.4, 0.3, 0.6]])


def test_boxes_on_an_image_with_padding_shrink_with_the_picture():
    objects = Objects(np.array([[0.5, 0.5, 1.0, 0.5]]), np.array([0]))
    (box,) = make_boxes(objects, ["cat"], scale=(0.5, 0.25))  # height, width
    np.testing.assert_allclose(box.place, [0, 0.125, 0.25, 0.375])


def test_text_names_centers_in_pixels_from_left_to_right():
    boxes = np.array([[0.75, 0.5, 0.5, 0.2], [0.25, 0.1, 0.1, 0.2]])
    text = describe_objects(Objects(boxes, np.array([1, 0])), ["cat", "dog"], (20, 40))
    assert text == "cat at (10.0, 2.0); dog at (30.0, 10.0)"


def test_more_objects_than_queries_are_an_error(task):
    data = dataclasses.replace(task.config.data, max_objects=3)
    assert dataclasses.replace(task.config, data=data).data.max_objects == cases.DETR.queries
    data = dataclasses.replace(data, max_objects=4)
    with pytest.raises(UserError, match=r"data\.max_objects \(4\), got 3"):
        dataclasses.replace(task.config, data=data)
