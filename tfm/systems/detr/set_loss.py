"""The loss of a set of predicted objects (Carion et al. 2020, section 3.1).

A matching assigns each true object to a separate prediction, and the loss compares the pairs. Shape
letters: B images, N predictions and M places for objects of an image.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from tfm.systems.detr.model import Detections
from tfm.training.task import SumAndCount


class LossWeights(NamedTuple):
    """The weights of the loss.

    Attributes:
      box, overlap: of the L1 distance of boxes and of the generalized IoU, in the loss and in the matching.
      empty: of the class of no object in the cross-entropy.
    """

    box: float = 5.0
    overlap: float = 2.0
    empty: float = 0.1


def set_loss(
    predictions: Detections, batch: Mapping[str, Any], factors: LossWeights
) -> tuple[dict[str, SumAndCount], dict[str, SumAndCount]]:
    """Computes the loss of a set of predictions for each decoder layer, and adds the layers.

    All layers have the same counts: the number of objects for boxes, and the weights of the classes.

    Args:
      predictions: predictions of all layers.
      batch: boxes, labels, objects and weights, see `tfm.systems.detr.batches`.
      factors: weights of the terms.

    Returns:
      The terms "class", "box" (L1) and "overlap" (1 - generalized IoU) as (sum, count), and the metrics of
      the last layer: the accuracy of the class and the IoU of matched predictions.
    """
    predictions = Detections(*(x.astype(jnp.float32) for x in predictions))
    weights, real = batch["weights"], batch["objects"] * batch["weights"][:, None]
    empty = predictions.logits.shape[-1] - 1
    match = functools.partial(match_objects, factors=factors)
    match = jax.vmap(jax.vmap(match), in_axes=(0, None))  # over layers and images
    targets = {name: batch[name] for name in ("boxes", "labels")} | {"objects": real}
    matches = match(jax.lax.stop_gradient(predictions), targets)  # [layers, B, M]
    # Places without an object write to an index that does not exist, and JAX drops what they write.
    index = jnp.where(real > 0, matches, predictions.logits.shape[2])
    layers, images = jnp.indices(index.shape)[:2]
    labels = jnp.full(predictions.logits.shape[:3], empty)
    labels = labels.at[layers, images, index].set(jnp.broadcast_to(batch["labels"], index.shape), mode="drop")
    log_probabilities = jax.nn.log_softmax(predictions.logits)
    losses = -jnp.take_along_axis(log_probabilities, labels[..., None], -1)[..., 0]
    class_weights = jnp.where(labels == empty, factors.empty, 1.0) * weights[:, None]
    boxes = jnp.take_along_axis(predictions.boxes, matches[..., None], 2)  # [layers, B, M, 4]
    distances = jnp.abs(boxes - batch["boxes"]).sum(-1) * real
    overlaps, generalized = box_overlaps(boxes, batch["boxes"])
    count = real.sum()
    terms = {
        "class": ((losses * class_weights).sum(), class_weights[-1].sum()),
        "box": (factors.box * distances.sum(), count),
        "overlap": (factors.overlap * ((1 - generalized) * real).sum(), count),
    }
    predicted = jnp.take_along_axis(predictions.logits[-1].argmax(-1), matches[-1], 1)
    metrics = {
        "class_accuracy": (((predicted == batch["labels"]) * real).sum(), count),
        "iou": ((overlaps[-1] * real).sum(), count),
    }
    return terms, metrics


def match_objects(
    predictions: Detections, targets: Mapping[str, jax.Array], factors: LossWeights
) -> jax.Array:
    """Assigns a prediction to each place for an object, so that the sum of the costs is minimal.

    Places without an object cost the same everywhere, so they do not change the assignment of the objects.

    Args:
      predictions: logits [N, classes + 1] and boxes [N, 4] of an image.
      targets: boxes [M, 4], labels [M] and objects [M].
      factors: weights of the costs.

    Returns:
      The index of the prediction, int [M].
    """
    probabilities = jax.nn.softmax(predictions.logits)[:, targets["labels"]]  # [N, M]
    boxes = predictions.boxes[:, None]
    costs = -probabilities + factors.box * jnp.abs(boxes - targets["boxes"]).sum(-1)
    costs -= factors.overlap * box_overlaps(boxes, targets["boxes"])[1]
    costs = jnp.where(targets["objects"] > 0, costs, 0.0)
    rows, columns = optax.assignment.hungarian_algorithm(costs)
    return jnp.zeros(costs.shape[1], int).at[columns].set(rows)


def box_overlaps(one: jax.Array, other: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Computes the intersection over union of boxes, and the generalized form (Rezatofighi et al. 2019).

    Args:
      one, other: [..., 4], center x, center y, width and height. The shapes broadcast.

    Returns:
      IoU from 0 to 1, and generalized IoU from -1 to 1, [...].
    """
    (low, high), (other_low, other_high) = (
        (box[..., :2] - box[..., 2:] / 2, box[..., :2] + box[..., 2:] / 2) for box in (one, other)
    )
    shared = (jnp.minimum(high, other_high) - jnp.maximum(low, other_low)).clip(0).prod(-1)
    union = one[..., 2:].prod(-1) + other[..., 2:].prod(-1) - shared
    hull = (jnp.maximum(high, other_high) - jnp.minimum(low, other_low)).prod(-1)
    iou = shared / jnp.maximum(union, 1e-9)
    return iou, iou - (hull - union) / jnp.maximum(hull, 1e-9)
