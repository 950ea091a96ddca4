"""The observation of a detector on one picture: where its object queries look."""

import math
from collections.abc import Mapping
from typing import Any

from tfm.data.batches.generated import Batch
from tfm.data.boxed_pictures import picture_size
from tfm.evaluation.detection_metrics import Objects
from tfm.interpret.observation import AttentionMap, Observation, Track, image_track
from tfm.tasks.detection.describe import describe_objects


def observe_queries(
    title: str, batch: Batch, found: Mapping[str, Any], reads: Mapping[str, Any], names: list[str]
) -> Observation:
    """Describes what a detector found and where its layers looked.

    Args:
      title: what the page calls the picture.
      batch: a batch of one picture.
      found: probabilities [1, N, classes] and boxes [1, N, 4] of the object queries.
      reads: attention weights [layers, 1, H, L, M] of the encoder ("encoder") and of the queries ("cross").
      names: names of the classes.
    """
    probabilities = found["probabilities"][0]
    classes = probabilities.argmax(-1)
    scores = probabilities.max(-1)
    labels = [
        f"query {index}: {names[label]} ({score:.0%})"
        for index, (label, score) in enumerate(zip(classes, scores, strict=True))
    ]
    image = batch["images"][0]
    places = reads["cross"].shape[-1]
    tracks = {
        "places": image_track(image, places, find_feature_map(image.shape[:2], places)),
        "queries": Track("object query", labels, list(range(len(labels))), labels),
    }
    attention = {
        "encoder": AttentionMap("places", "places", reads["encoder"][:, 0]),
        "cross": AttentionMap("queries", "places", reads["cross"][:, 0]),
    }
    objects = Objects(found["boxes"][0], classes, scores)
    return Observation(title, describe_objects(objects, names, picture_size(batch, 0)), tracks, attention, [])


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
