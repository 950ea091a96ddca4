"""Detected objects as a line of text, and as boxes that can be drawn."""

from collections.abc import Sequence

import numpy as np

from tfm.evaluation.detection_metrics import Objects
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
    height_scale, width_scale = scale
    scores = np.ones(len(objects.labels)) if objects.scores is None else objects.scores
    shares = objects.boxes * np.array([width_scale, height_scale] * 2)
    boxes = []
    for (x, y, width, height), label, score in zip(
        shares.tolist(), objects.labels.tolist(), scores, strict=True
    ):
        place = x - width / 2, y - height / 2, x + width / 2, y + height / 2
        if score >= SHOWN_SCORE:
            boxes.append(Box(place, names[label], int(label)))
    return boxes
