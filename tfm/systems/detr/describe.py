"""Detected objects as a line of text, and as boxes that can be drawn."""

from collections.abc import Sequence

import numpy as np

from tfm.systems.detr.metrics import Objects
from tfm.visualize.pictures import Box

SHOWN_SCORE = 0.5  # detections with at least this probability are printed and drawn


def describe_objects(objects: Objects, names: list[str], size: Sequence[int]) -> str:
    """Returns a line with the label and the center of each object, in pixels, from left to right.

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
    """Returns the boxes of objects whose score is at least `SHOWN_SCORE`.

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
