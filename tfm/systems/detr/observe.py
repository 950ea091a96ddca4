"""The observation of a detector on one picture: what its object queries find, and where they look."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfm.data.batches.generated import Batch
from tfm.interpret.observation import MAX_CHOICES, AttentionMap, Observation, Prediction, Track, image_track
from tfm.systems.detr.batches import picture_size
from tfm.visualize.pictures import Box

SHOWN_SCORE = 0.5  # detections with at least this probability are printed and drawn


class Objects(NamedTuple):
    """The objects of a picture, to print and to draw.

    Attributes:
      boxes: float [n, 4], center x, center y, width and height as shares of the picture.
      labels: int [n].
      scores: float [n], for detected objects.
    """

    boxes: np.ndarray
    labels: np.ndarray
    scores: np.ndarray | None = None


def describe_objects(objects: Objects, names: list[str], size: Sequence[int]) -> str:
    """Returns a line with the label and the center of each object, in pixels, from left to right.

    An object is for example "cat at (12.5, 40.0)", and "; " stands between two objects. Objects whose score
    is below `SHOWN_SCORE` are left out, so the line may be empty.

    Args:
      objects: the objects of a picture.
      names: names of the classes.
      size: height and width of the picture in pixels.
    """
    height, width = size
    texts = []
    for box in sorted(make_boxes(objects, names), key=lambda box: box.place):
        left, top, right, bottom = box.place
        texts.append(f"{box.text} at ({width * (left + right) / 2:.1f}, {height * (top + bottom) / 2:.1f})")
    return "; ".join(texts)


def make_boxes(objects: Objects, names: list[str], scale: Sequence[float] = (1.0, 1.0)) -> list[Box]:
    """Returns the boxes of objects whose score is at least `SHOWN_SCORE`, or of all objects without scores.

    Args:
      objects: the objects of a picture.
      names: names of the classes.
      scale: height and width of the picture as shares of the image with padding on which the boxes are drawn.
    """
    shown = slice(None) if objects.scores is None else objects.scores >= SHOWN_SCORE
    centers, sizes = np.split(objects.boxes[shown] * [*scale[::-1], *scale[::-1]], 2, axis=-1)
    places = np.concatenate([centers - sizes / 2, centers + sizes / 2], axis=-1).tolist()
    labels = objects.labels[shown].tolist()
    return [Box(tuple(place), names[label], label) for place, label in zip(places, labels, strict=True)]


NO_OBJECT = "no object"


def observe_queries(
    title: str, batch: Batch, outputs: Mapping[str, Any], reads: Mapping[str, Any], names: list[str]
) -> Observation:
    """Describes what a detector found and where its layers looked, with the most confident query first.

    Args:
      title: what the page calls the picture, before the names of its objects.
      batch: a batch of one picture.
      outputs: probabilities [1, N, classes] and boxes [1, N, 4] of the object queries.
      reads: attention weights [layers, 1, H, L, M] of the encoder ("encoder") and of the queries ("cross").
      names: names of the classes.
    """
    order = np.argsort(-outputs["probabilities"][0].max(-1), kind="stable")
    probabilities = outputs["probabilities"][0][order]
    objects = Objects(outputs["boxes"][0][order], probabilities.argmax(-1), probabilities.max(-1))
    image, size = batch["images"][0], picture_size(batch, 0)
    truth = ", ".join(names[label] for label in batch["labels"][0][batch["objects"][0] > 0])
    answers = [*names, NO_OBJECT]
    rows = np.column_stack([probabilities, 1 - probabilities.sum(-1)])
    choices = [[(answers[i], float(row[i])) for i in np.argsort(-row)[:MAX_CHOICES]] for row in rows]
    best = [each[0][0] for each in choices]
    labels = [f"query {number}: {answer}" for number, answer in zip(order, best, strict=True)]
    boxes = make_boxes(objects._replace(scores=None), names, np.divide(size, image.shape[:2]).tolist())
    framed = [None if answer == NO_OBJECT else box.place for answer, box in zip(best, boxes, strict=True)]
    places = reads["cross"].shape[-1]
    tracks = {
        "places": image_track(image, places, find_feature_map(image.shape[:2], places)),
        "predicted": Track("object query", labels, [*range(len(labels))], labels, boxes=framed),
    }
    attention = {
        "encoder": AttentionMap("places", "places", reads["encoder"][:, 0]),
        "cross": AttentionMap("predicted", "places", reads["cross"][:, 0][:, :, order]),
    }
    predictions = [Prediction(each[0][1], each) for each in choices]
    result = describe_objects(objects, names, size)
    return Observation(f"{title}: {truth}" if truth else title, result, tracks, attention, predictions)


def find_feature_map(size: tuple[int, int], places: int) -> tuple[int, int]:
    """Returns rows and columns of the feature map of an image. Each halving in the ResNet rounds up.

    Raises:
      ValueError: if no number of halvings gives this number of places.
    """
    for halvings in range(max(size).bit_length() + 1):
        rows, columns = (math.ceil(pixels / 2**halvings) for pixels in size)
        if rows * columns == places:
            return rows, columns
    raise ValueError(f"Expected the places of a feature map of {size} pixels, got {places}.")
