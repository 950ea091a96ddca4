"""Tests of average precision against pycocotools."""

import contextlib
import dataclasses
import io
import types

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from tests.support.boxed_pictures import write_coco
from tfm.data.batches.generated import evaluation_batches
from tfm.errors import UserError
from tfm.systems.detr.data import open_pictures
from tfm.systems.detr.metrics import (
    THRESHOLDS,
    Detections,
    Truth,
    average_precision,
    detection_scores,
    make_truth,
    match_class,
    to_pixels,
)

NO_SCORE = -1  # what pycocotools returns for a size of which no object exists


def run_pycocotools(truth, results):
    """Returns {name: score in per cent} of a COCO object with its index, and of results in COCO's format."""
    with contextlib.redirect_stdout(io.StringIO()):
        run = COCOeval(truth, truth.loadRes(results), "bbox")
        run.evaluate()
        run.accumulate()
        run.summarize()
    names = ("AP", "AP50", "AP75", "AP small", "AP medium", "AP large")
    return {name: 100 * value for name, value in zip(names, run.stats[:6], strict=True) if value != NO_SCORE}


def coco_scores(detected, truths):
    """Returns {name: score in per cent} by pycocotools."""
    images = [{"id": image} for image in range(len(truths))]
    categories = sorted({int(label) for side in (detected, truths) for each in side for label in each.labels})
    annotations = [
        {
            "image_id": image,
            "category_id": int(label),
            "bbox": box.tolist(),
            "area": float(area),
            "iscrowd": int(is_crowd),
        }
        for image, truth in enumerate(truths)
        for box, label, area, is_crowd in zip(*truth, strict=True)
    ]
    results = [
        {"image_id": image, "category_id": int(label), "bbox": box.tolist(), "score": float(score)}
        for image, detections in enumerate(detected)
        for box, label, score in zip(*detections, strict=True)
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = {
            "info": {},
            "images": images,
            "categories": [{"id": label} for label in categories],
            "annotations": [entry | {"id": number} for number, entry in enumerate(annotations, 1)],
        }
        truth.createIndex()
    return run_pycocotools(truth, results)


def our_scores(detected, truths):
    """Returns {name: score in per cent}."""
    return {score.name: score.value for score in detection_scores(detected, truths)}


def draw_truth(rng, count, size=300, classes=3, crowd_share=0.0, step=0.0):
    """Returns random true objects. A `step` puts them on a grid, so that overlaps repeat."""
    boxes = np.concatenate([rng.uniform(0, size, (count, 2)), rng.uniform(1, size / 2, (count, 2))], axis=1)
    if step:
        boxes = np.round(boxes / step) * step + [0, 0, step, step]
    areas = boxes[:, 2:].prod(1) * rng.uniform(0.5, 1, count)
    return Truth(boxes, rng.integers(classes, size=count), areas, rng.uniform(size=count) < crowd_share)


def draw_detections(rng, truth, others=2, size=300, scores=0, step=0.0):
    """Returns detections near to true objects, some with a wrong label, and others elsewhere.

    `scores` limits the number of different scores, so that some are equal.
    """
    moved = truth.boxes + rng.normal(0, 0.08, truth.boxes.shape) * np.tile(truth.boxes[:, 2:], 2)
    elsewhere = draw_truth(rng, others, size)
    boxes = np.concatenate([moved, elsewhere.boxes])
    boxes[:, 2:] = np.maximum(boxes[:, 2:], 1)
    if step:
        boxes = np.round(boxes / step) * step + [0, 0, step, step]
    is_wrong = rng.uniform(size=len(truth.labels)) < 0.2
    labels = np.concatenate([np.where(is_wrong, (truth.labels + 1) % 3, truth.labels), elsewhere.labels])
    values = rng.integers(scores, size=len(boxes)) / scores if scores else rng.uniform(size=len(boxes))
    return Detections(boxes, labels, values)


KINDS = {
    "random": ({}, {}),
    "equal scores": ({}, {"scores": 3}),
    "grid": ({"step": 20.0, "size": 100}, {"step": 20.0, "size": 100, "scores": 4, "others": 20}),
    "crowds": ({"crowd_share": 0.4}, {"others": 30}),
    "crowds on a grid": ({"crowd_share": 0.4, "step": 25.0, "size": 100}, {"step": 25.0, "others": 30}),
    "more than 100 detections": ({"classes": 1}, {"others": 400}),
    "small objects": ({"size": 60}, {"size": 60}),
    "small, medium and large objects": ({"size": 500}, {"size": 500, "others": 20}),
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_scores_equal_those_of_pycocotools(kind, seed):
    rng = np.random.default_rng(seed)
    of_truth, of_detections = KINDS[kind]
    truths = [draw_truth(rng, int(rng.integers(1, 9)), **of_truth) for _ in range(12)]
    detected = [draw_detections(rng, truth, **of_detections) for truth in truths]
    ours = our_scores(detected, truths)
    assert ours == pytest.approx(coco_scores(detected, truths), abs=1e-9)
    assert 0 < ours["AP"] < 100


def test_scores_of_a_split_equal_those_of_pycocotools_on_its_files(tmp_path):
    """Boxes are shares of a resized picture in between, and crowds and empty boxes are not in the batches."""
    rng = np.random.default_rng(0)
    annotations = [
        {
            "id": number,
            "image_id": 10 + number % 3,
            "bbox": [*rng.uniform(0, 4, 2), *rng.uniform(0, 5, 2)] if number % 7 else [3, 3, 0, 5],
            "category_id": [3, 7][number % 2],
            "iscrowd": int(number % 5 == 0),
            "area": float(rng.uniform(1, 20)),
        }
        for number in range(1, 40)
    ]
    config = dataclasses.replace(write_coco(tmp_path, annotations=annotations), max_objects=30)
    pictures = open_pictures(config, "train", types.SimpleNamespace(channels=3, classes=8))
    batch = next(evaluation_batches(pictures, pictures.evaluated, pictures.evaluated))
    detected = []
    for index in range(pictures.evaluated):
        is_object = batch["objects"][index] > 0
        boxes = batch["boxes"][index][is_object] * rng.uniform(0.9, 1.1, (is_object.sum(), 4))
        pixels = to_pixels(boxes, pictures.size(index))
        detected.append(Detections(pixels, batch["labels"][index][is_object], rng.uniform(size=len(pixels))))
    results = [
        {"image_id": 10 + image, "category_id": int(label), "bbox": box.tolist(), "score": float(score)}
        for image, detections in enumerate(detected)
        for box, label, score in zip(*detections, strict=True)
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(tmp_path / "annotations" / "instances_small.json"))
    truth.dataset["info"] = {}
    ours = our_scores(detected, [pictures.truth(index) for index in range(pictures.evaluated)])
    assert ours == pytest.approx(run_pycocotools(truth, results), abs=1e-9)
    assert 0 < ours["AP"] < 100


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_an_overlap_that_equals_a_threshold_is_a_hit(threshold):
    """With 20 pixels of width, the threshold 0.75 is met by 15 pixels exactly."""
    truth = make_truth(np.array([[0, 0, 20, 10]]), np.array([0]))
    width = round(float(20 * threshold))
    detected = Detections(np.array([[0, 0, width, 10]], float), np.array([0]), np.array([0.9]))
    assert our_scores([detected], [truth]) == pytest.approx(coco_scores([detected], [truth]), abs=1e-9)
    at_threshold = average_precision(match_class([detected], [truth], 0))
    np.testing.assert_allclose(at_threshold, threshold >= THRESHOLDS)


def test_ap75_of_an_overlap_of_three_quarters_is_100():
    truth = make_truth(np.array([[0, 0, 100, 100]]), np.array([0]))
    detected = Detections(np.array([[0, 0, 75, 100]], float), np.array([0]), np.array([0.9]))
    assert our_scores([detected], [truth])["AP75"] == 100
    below = detected._replace(boxes=np.array([[0, 0, 74, 100]], float))
    assert our_scores([below], [truth])["AP75"] == 0
    assert our_scores([below], [truth])["AP50"] == 100


def test_detections_on_crowds_are_neither_right_nor_wrong():
    boxes = np.array([[0, 0, 10, 10], [50, 50, 40, 40]], float)
    truth = Truth(boxes, np.zeros(2, int), np.array([100.0, 1600.0]), np.array([False, True]))
    on_crowd = [[50, 50, 10, 10], [60, 60, 10, 10]]
    detected = Detections(
        np.array([*on_crowd, [0, 0, 10, 10]], float), np.zeros(3, int), np.array([0.9, 0.8, 0.7])
    )
    assert our_scores([detected], [truth])["AP"] == 100
    elsewhere = detected._replace(boxes=np.array([[200, 0, 9, 9], [300, 0, 9, 9], [0, 0, 10, 10]], float))
    assert our_scores([elsewhere], [truth])["AP"] == pytest.approx(100 / 3)


def test_crowds_alone_are_no_true_objects():
    truth = Truth(np.array([[0, 0, 9, 9.0]]), np.zeros(1, int), np.array([81.0]), np.array([True]))
    with pytest.raises(UserError, match="no image has one"):
        detection_scores([Detections(truth.boxes, truth.labels, np.ones(1))], [truth])


def test_perfect_detections_score_100():
    rng = np.random.default_rng(0)
    truths = [draw_truth(rng, 3) for _ in range(5)]
    detected = [Detections(truth.boxes, truth.labels, np.ones(3)) for truth in truths]
    assert set(our_scores(detected, truths).values()) == {100}


def test_second_detection_of_an_object_is_wrong():
    box = np.array([[50.0, 50, 20, 20]])
    twice = Detections(box.repeat(2, 0), np.array([0, 0]), np.array([0.9, 0.8]))
    more = make_truth(np.concatenate([box, box + 30]), np.array([0, 0]))
    assert our_scores([twice], [make_truth(box, np.array([0]))])["AP50"] == 100  # the wrong one comes last
    assert our_scores([twice], [more])["AP50"] == pytest.approx(100 * 51 / 101)


def test_images_without_detections_count():
    truths = [make_truth(np.array([[5, 5, 9, 9]]), np.array([0]))] * 2
    nothing = Detections(np.zeros((0, 4)), np.zeros(0, int), np.zeros(0))
    found = Detections(truths[0].boxes, truths[0].labels, np.ones(1))
    assert our_scores([found, nothing], truths)["AP50"] == pytest.approx(100 * 51 / 101)


def test_images_without_true_objects_are_an_error():
    nothing = make_truth(np.zeros((0, 4)), np.zeros(0, int))
    with pytest.raises(UserError, match="no image has one"):
        detection_scores([Detections(np.ones((2, 4)), np.zeros(2, int), np.ones(2))], [nothing])


def test_shares_become_pixels_of_the_picture():
    boxes = np.array([[0.5, 0.25, 0.2, 0.5]], np.float32)
    np.testing.assert_allclose(to_pixels(boxes, (100, 200)), [[80, 0, 40, 50]], rtol=1e-6)
