"""Tests that a detector reads pictures of several sizes in COCO's format."""

import dataclasses

import jax
import numpy as np

from tests.support.boxed_pictures import write_coco
from tests.tasks.cases import DETR
from tfm.tasks import detection


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
