"""Tests of the matching and the loss of sets of objects."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from tfm.systems.detr.model import Detections
from tfm.systems.detr.set_loss import LossWeights, box_overlaps, match_objects, set_loss


def random_boxes(rng, *shape):
    return rng.uniform(0.1, 0.9, (*shape, 4)).astype(np.float32)


def random_batch(rng, images=3, places=4, predictions=6, layers=2, classes=5):
    counts = rng.integers(0, places + 1, images)
    objects = (np.arange(places) < counts[:, None]).astype(np.float32)
    batch = {
        "boxes": random_boxes(rng, images, places) * objects[..., None],
        "labels": rng.integers(classes, size=(images, places)).astype(np.int32) * objects.astype(np.int32),
        "objects": objects,
        "weights": np.ones(images, np.float32),
    }
    logits = rng.normal(size=(layers, images, predictions, classes + 1)).astype(np.float32)
    return Detections(logits, random_boxes(rng, layers, images, predictions)), batch


def slow_overlap(one, other):
    """Returns IoU and generalized IoU of two boxes."""
    corners = [(x - w / 2, y - h / 2, x + w / 2, y + h / 2) for x, y, w, h in (one, other)]
    low, high = np.maximum(*corners)[:2], np.minimum(*corners)[2:]
    shared = np.prod(np.maximum(high - low, 0))
    union = one[2] * one[3] + other[2] * other[3] - shared
    hull = np.prod(np.maximum(*corners)[2:] - np.minimum(*corners)[:2])
    return shared / union, shared / union - (hull - union) / hull


def test_overlaps_equal_a_loop():
    rng = np.random.default_rng(0)
    one, other = random_boxes(rng, 20), random_boxes(rng, 20)
    expected = np.transpose([slow_overlap(*pair) for pair in zip(one, other, strict=True)])
    np.testing.assert_allclose(np.stack(box_overlaps(one, other)), expected, atol=1e-5)


def slow_costs(found, boxes, labels, layer, image, factors):
    """Returns the costs [N, objects] of an image by the formula of the paper."""
    probabilities = np.asarray(jax.nn.softmax(found.logits[layer, image]))
    return np.array(
        [
            [
                -probabilities[n, label]
                + factors.box * np.abs(found.boxes[layer, image, n] - box).sum()
                - factors.overlap * slow_overlap(found.boxes[layer, image, n], box)[1]
                for box, label in zip(boxes, labels, strict=True)
            ]
            for n in range(found.boxes.shape[2])
        ]
    )


@pytest.mark.parametrize("seed", range(5))
def test_matching_has_the_smallest_cost_of_all_assignments(seed):
    found, batch = random_batch(np.random.default_rng(seed))
    factors = LossWeights()
    for image in range(3):
        single = Detections(found.logits[0, image], found.boxes[0, image])
        targets = {name: batch[name][image] for name in ("boxes", "labels", "objects")}
        chosen = np.asarray(match_objects(single, targets, factors))
        count = int(batch["objects"][image].sum())
        assert len(set(chosen)) == len(chosen)
        costs = slow_costs(
            found, batch["boxes"][image, :count], batch["labels"][image, :count], 0, image, factors
        )
        if count:
            rows, columns = scipy.optimize.linear_sum_assignment(costs)
            best = costs[rows, columns].sum()
            brute = min(
                costs[list(each), range(count)].sum() for each in itertools.permutations(range(6), count)
            )
            assert best == pytest.approx(brute, abs=1e-5)
            assert costs[chosen[:count], range(count)].sum() == pytest.approx(best, abs=1e-4)


def test_loss_equals_a_loop_over_layers_and_images():
    found, batch = random_batch(np.random.default_rng(0))
    factors = LossWeights(3.0, 1.5, 0.2)
    terms, _ = jax.jit(lambda found, batch: set_loss(found, batch, factors))(found, batch)
    sums = dict.fromkeys(("class", "box", "overlap"), 0.0)
    class_count = 0.0
    for layer, image in np.ndindex(2, 3):
        count = int(batch["objects"][image].sum())
        boxes, labels = batch["boxes"][image, :count], batch["labels"][image, :count]
        rows, columns = scipy.optimize.linear_sum_assignment(
            slow_costs(found, boxes, labels, layer, image, factors).reshape(6, count)
        )
        targets = np.full(6, 5)
        targets[rows] = labels[columns]
        log_probabilities = np.asarray(jax.nn.log_softmax(found.logits[layer, image]))
        weights = np.where(targets == 5, factors.empty, 1.0)
        sums["class"] -= (weights * log_probabilities[range(6), targets]).sum()
        class_count += weights.sum() * (layer == 0)
        for row, column in zip(rows, columns, strict=True):
            box = found.boxes[layer, image, row]
            sums["box"] += factors.box * np.abs(box - boxes[column]).sum()
            sums["overlap"] += factors.overlap * (1 - slow_overlap(box, boxes[column])[1])
    for name, expected in sums.items():
        assert float(terms[name][0]) == pytest.approx(expected, rel=1e-4), name
    assert float(terms["class"][1]) == pytest.approx(class_count, rel=1e-5)
    assert float(terms["box"][1]) == float(terms["overlap"][1]) == batch["objects"].sum()


def test_loss_does_not_depend_on_the_order_of_predictions_and_objects():
    rng = np.random.default_rng(0)
    found, batch = random_batch(rng)
    batch["objects"][:] = 1
    predictions, places = rng.permutation(6), rng.permutation(4)
    shuffled = Detections(found.logits[:, :, predictions], found.boxes[:, :, predictions])
    other = {name: x if name == "weights" else x[:, places] for name, x in batch.items()}
    one, two = (set_loss(*pair, LossWeights())[0] for pair in ((found, batch), (shuffled, other)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), one, two)


def test_perfect_predictions_have_no_loss_of_boxes():
    rng = np.random.default_rng(0)
    _, batch = random_batch(rng)
    batch["boxes"], batch["objects"][:] = random_boxes(rng, 3, 4), 1
    logits = 20.0 * jax.nn.one_hot(np.pad(batch["labels"], ((0, 0), (0, 2)), constant_values=5), 6)
    boxes = np.pad(batch["boxes"], ((0, 0), (0, 2), (0, 0)), constant_values=0.5)
    found = Detections(logits[None], jnp.asarray(boxes)[None])
    terms, metrics = set_loss(found, batch, LossWeights())
    assert max(float(total) for total, _ in terms.values()) < 1e-3
    assert float(metrics["iou"][0]) == pytest.approx(12, rel=1e-5)
    assert float(metrics["class_accuracy"][0]) == 12
