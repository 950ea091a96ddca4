"""Tests of the matching and the loss of sets of objects."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special

from tests.references.numeric_gradients import assert_gradient_close
from tfm.systems.detr.model import Detections
from tfm.systems.detr.set_loss import LossWeights, box_overlaps, match_objects, set_loss
from tfm.testing.models import assert_trees_close, quick_jit


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


FACTORS = LossWeights(3.0, 1.5, 0.2)


@quick_jit
def compute(predictions, batch):
    """Returns the gradient of the sum of all terms divided by their counts, the terms and the metrics."""

    def loss(predictions):
        terms, metrics = set_loss(predictions, batch, FACTORS)
        return sum(total / count for total, count in terms.values()), (terms, metrics)

    return jax.grad(loss, has_aux=True)(predictions)


def match_slowly(found, batch):
    """Returns {(layer, image): [(prediction, object)]} with the smallest costs."""
    matches = {}
    for layer, image in np.ndindex(*found.logits.shape[:2]):
        count = int(batch["objects"][image].sum())
        boxes, labels = batch["boxes"][image, :count], batch["labels"][image, :count]
        costs = slow_costs(found, boxes, labels, layer, image, FACTORS).reshape(-1, count)
        matches[layer, image] = list(zip(*scipy.optimize.linear_sum_assignment(costs), strict=True))
    return matches


def slow_terms(found, batch, matches):
    """Returns {name: (sum, count)} of the terms of the loss in float64, for given matches."""
    sums = dict.fromkeys(("class", "box", "overlap"), 0.0)
    empty, layers = found.logits.shape[-1] - 1, len(found.logits)
    class_count = 0.0
    for (layer, image), pairs in matches.items():
        if not batch["weights"][image]:
            continue
        targets = {row: batch["labels"][image, column] for row, column in pairs}
        for n, logits in enumerate(found.logits[layer, image]):
            weight = 1.0 if n in targets else FACTORS.empty
            log_probabilities = logits - scipy.special.logsumexp(logits)
            sums["class"] -= weight * log_probabilities[targets.get(n, empty)]
            class_count += weight / layers
        for row, column in pairs:
            box, target = found.boxes[layer, image, row], batch["boxes"][image, column]
            sums["box"] += FACTORS.box * np.abs(box - target).sum()
            sums["overlap"] += FACTORS.overlap * (1 - slow_overlap(box, target)[1])
    objects = (batch["objects"] * batch["weights"][:, None]).sum()
    return {name: (x, class_count if name == "class" else objects) for name, x in sums.items()}


@pytest.fixture(scope="module")
def example():
    """Returns predictions and a batch whose second image is padding with what looks like objects."""
    found, batch = random_batch(np.random.default_rng(4), images=4)
    batch["objects"][:2] = 1
    batch["boxes"] = random_boxes(np.random.default_rng(5), 4, 4)
    batch["weights"][1] = 0
    found.logits[1, :, :, 0] += 3  # many predictions are of the class that places without an object name
    return found, batch


def test_padding_rows_change_neither_terms_nor_metrics(example):
    found, batch = example
    _, (terms, metrics) = compute(found, batch)
    is_padding = np.array([0, 1, 0, 0], bool)
    empty = {name: np.where(is_padding.reshape(4, *[1] * (x.ndim - 1)), 0, x) for name, x in batch.items()}
    others = Detections(*(np.where(is_padding[:, None, None], 1 - x, x).astype(np.float32) for x in found))
    assert_trees_close(compute(others, empty)[1], (terms, metrics), rtol=1e-5)


def test_terms_with_padding_equal_a_loop(example):
    expected = slow_terms(*example, match_slowly(*example))
    _, (terms, _) = compute(*example)
    for name, pair in expected.items():
        assert terms[name] == pytest.approx(pair, rel=1e-4), name


def test_gradients_of_predictions_equal_central_differences(example):
    found, batch = example
    matches = match_slowly(found, batch)

    def loss(found):
        return sum(total / count for total, count in slow_terms(found, batch, matches).values())

    assert_gradient_close(compute(found, batch)[0], loss, found, step=1e-6, directions=4)


def test_metrics_are_those_of_the_matched_predictions_of_the_last_layer(example):
    found, batch = example
    matches = match_slowly(found, batch)
    right, overlap, count = 0, 0.0, 0
    for image in (0, 2, 3):
        for row, column in matches[1, image]:
            right += found.logits[1, image, row].argmax() == batch["labels"][image, column]
            overlap += slow_overlap(found.boxes[1, image, row], batch["boxes"][image, column])[0]
            count += 1
    _, (_, metrics) = compute(found, batch)
    assert metrics["class_accuracy"] == pytest.approx((right, count))
    assert metrics["iou"] == pytest.approx((overlap, count), rel=1e-4)


def test_weights_of_the_loss_are_those_of_the_paper():
    assert LossWeights() == (5, 2, 0.1)
