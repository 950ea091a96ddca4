"""Tests of average precision."""

import contextlib
import io

import numpy as np
import pytest

from tfm.errors import UserError
from tfm.systems.detr.metrics import Objects, average_precision, detection_scores


def objects(rng, count, labels=None, scores=True):
    labels = rng.integers(3, size=count) if labels is None else labels
    boxes = rng.uniform(0.2, 0.8, (count, 4))
    return Objects(boxes, labels, rng.uniform(size=count) if scores else None)


def test_perfect_detections_score_100():
    rng = np.random.default_rng(0)
    truths = [objects(rng, 3) for _ in range(5)]
    assert [score.value for score in detection_scores(truths, truths)] == [100, 100, 100]


def test_second_detection_of_an_object_is_wrong():
    box = np.array([[0.5, 0.5, 0.2, 0.2]])
    truth = Objects(box, np.array([0]))
    twice = Objects(box.repeat(2, 0), np.array([0, 0]), np.array([0.9, 0.8]))
    assert average_precision([twice], [truth], 0, 0.5) == 1  # the wrong detection comes last
    more = Objects(np.concatenate([box, box + 0.3]), np.array([0, 0]))
    assert average_precision([twice], [more], 0, 0.5) == pytest.approx(51 / 101)


def test_wrong_detections_with_larger_scores_lower_the_precision():
    box = np.array([[0.5, 0.5, 0.2, 0.2]])
    found = Objects(np.concatenate([box + 0.3, box]), np.array([0, 0]), np.array([0.9, 0.8]))
    assert average_precision([found], [Objects(box, np.array([0]))], 0, 0.5) == pytest.approx(0.5)


def test_images_without_detections_count():
    rng = np.random.default_rng(0)
    truths = [objects(rng, 1, np.array([0])) for _ in range(2)]
    nothing = Objects(np.zeros((0, 4)), np.zeros(0, int), np.zeros(0))
    assert average_precision([truths[0], nothing], truths, 0, 0.5) == pytest.approx(51 / 101)


def coco_scores(detected, truths):
    """Returns AP50, AP75 and AP in per cent by pycocotools."""
    coco, size = pytest.importorskip("pycocotools.coco"), 100
    evaluation = pytest.importorskip("pycocotools.cocoeval")

    def entries(side):
        for image, found in enumerate(side):
            scores = np.ones(len(found.labels)) if found.scores is None else found.scores
            for (x, y, width, height), label, score in zip(found.boxes, found.labels, scores, strict=True):
                box = [float(size * each) for each in (x - width / 2, y - height / 2, width, height)]
                yield {
                    "id": 0,
                    "image_id": image,
                    "category_id": int(label),
                    "bbox": box,
                    "area": box[2] * box[3],
                    "iscrowd": 0,
                    "score": float(score),
                }

    truth = coco.COCO()
    truth.dataset = {
        "images": [{"id": image} for image in range(len(truths))],
        "categories": [{"id": label} for label in range(3)],
        "annotations": [entry | {"id": number} for number, entry in enumerate(entries(truths), 1)],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        run = evaluation.COCOeval(truth, truth.loadRes(list(entries(detected))), "bbox")
        run.evaluate()
        run.accumulate()
        run.summarize()
    return [100 * run.stats[index] for index in (1, 2, 0)]


def near(rng, truth):
    """Returns detections near to true objects, some of them with a wrong label, and others elsewhere."""
    boxes = truth.boxes * rng.uniform(0.85, 1.15, truth.boxes.shape)
    labels = np.where(rng.uniform(size=len(truth.labels)) < 0.2, rng.integers(3), truth.labels)
    other = objects(rng, 2)
    return Objects(
        np.concatenate([boxes, other.boxes]),
        np.concatenate([labels, other.labels]),
        rng.uniform(size=len(labels) + 2),
    )


def test_scores_equal_those_of_pycocotools():
    rng = np.random.default_rng(0)
    truths = [objects(rng, int(rng.integers(1, 6)), scores=False) for _ in range(40)]
    detected = [near(rng, truth) for truth in truths]
    found = [score.value for score in detection_scores(detected, truths)]
    assert found == pytest.approx(coco_scores(detected, truths), abs=1e-6)


def test_images_without_true_objects_are_an_error():
    rng = np.random.default_rng(0)
    with pytest.raises(UserError, match="no image has one"):
        detection_scores([objects(rng, 2)], [objects(rng, 0)])
