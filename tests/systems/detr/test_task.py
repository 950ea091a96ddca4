"""Tests that a detector reads pictures of several sizes in COCO's format."""

import dataclasses

import jax
import numpy as np
import pytest

from tests.support.boxed_pictures import write_coco
from tests.tasks.cases import DETR
from tfm.errors import UserError
from tfm.systems.detr import task as detection
from tfm.systems.detr.observe import find_feature_map, observe_queries
from tfm.testing.models import quick_jit


@pytest.mark.long
@pytest.mark.long
def test_detector_of_data_without_a_test_split_shows_validation_pictures_and_own_pictures(tmp_path):
    data = dataclasses.replace(write_coco(tmp_path), test="test", evaluated=1)  # COCO publishes no test boxes
    model = dataclasses.replace(DETR, channels=3, classes=8, queries=5)
    task = detection.create(detection.Config(model=model, data=data), "")
    variables = quick_jit(task.init)(jax.random.key(0))
    assert task.default_examples() == ["0"]
    assert task.observe(variables, "0", 100).title == "picture 0 of the validation split: dog"
    with pytest.raises(UserError, match="validation"):
        task.observe(variables, "1", 100)
    picture = task.read_picture((tmp_path / "small" / "1.png").read_bytes(), "1.png")
    assert task.observe_picture(variables, picture, "1.png").title == "1.png"


def test_detector_of_coco_evaluates_reports_and_observes(tmp_path):
    model = dataclasses.replace(DETR, channels=3, classes=8, queries=4)
    task = detection.create(detection.Config(model=model, data=write_coco(tmp_path)), str(tmp_path))
    variables = task.init(jax.random.key(0))
    (report,) = task.report(variables, "small")
    assert len(report.outputs) == 3
    assert report.examples[0]["true"] == "dog at (9.6, 10.0)"  # of the resized picture
    observation = task.observe(variables, "1", 100)
    weights = observation.attention["cross"].weights
    padding = weights.reshape(*weights.shape[:-1], 4, 8)[..., 2:]  # the picture is 5 pixels wide, of 32
    np.testing.assert_array_equal(padding, 0)
    picture = task.read_picture(str(tmp_path / "small" / "1.png"), "1.png")
    own = task.observe_picture(variables, picture, "1.png")
    assert own.title == "1.png"
    np.testing.assert_array_equal(own.attention["cross"].weights, weights)


def test_observation_begins_with_the_surest_query():
    probabilities = np.array([[[0.1, 0.2], [0.1, 0.8], [0.6, 0.1]]])
    boxes = np.array([[[0.5] * 4, [0.5, 0.5, 1.0, 0.5], [0.25, 0.5, 0.5, 1.0]]])
    batch = {"images": np.zeros((1, 4, 8, 1)), "valid": np.ones((1, 4, 8), bool)}
    batch["valid"][:, :, 4:] = False
    cross = np.arange(3.0)[None, None, None, :, None] * np.ones((1, 1, 1, 3, 8))
    reads = {"encoder": np.ones((1, 1, 1, 8, 8)), "cross": cross}
    found = {"probabilities": probabilities, "boxes": boxes}
    batch |= {"labels": np.array([[1, 0]]), "objects": np.array([[1.0, 0.0]])}
    observation = observe_queries("title", batch, found, reads, ["cat", "dog"])
    assert observation.title == "title: dog"
    track = observation.tracks["predicted"]
    assert track.labels == ["query 1: dog", "query 2: cat", "query 0: no object"]
    assert track.boxes == [
        (0.0, 0.25, 0.5, 0.75),
        (0.0, 0.0, 0.25, 1.0),
        None,
    ]  # half of the image is padding
    np.testing.assert_array_equal(observation.attention["cross"].weights[0, 0, :, 0], [1, 2, 0])
    assert [each.probability for each in observation.predictions] == pytest.approx([0.8, 0.6, 0.7])


@pytest.mark.parametrize(
    ("size", "grid"), [((320, 336), (10, 11)), ((33, 64), (2, 2)), ((640, 656), (20, 21)), ((24, 24), (6, 6))]
)
def test_feature_maps_round_up(size, grid):
    assert find_feature_map(size, grid[0] * grid[1]) == grid


def test_other_numbers_of_places_are_errors():
    with pytest.raises(ValueError, match="got 7"):
        find_feature_map((32, 32), 7)
