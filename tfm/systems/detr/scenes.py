"""Generated pictures of a few handwritten digits with their boxes, for detection.

Each scene is a function of its split and its number, or of seed, step and row.
"""

import dataclasses
import hashlib

import numpy as np

from tfm.data.batches.generated import EVALUATION, Batch, find_split
from tfm.data.config import ImagesConfig
from tfm.data.images import open_images
from tfm.systems.detr.batches import BoxedPicture, BoxedPicturesConfig, assemble
from tfm.systems.detr.metrics import Truth, make_truth, to_pixels

DIGIT = 8  # height and width of a digit in pixels
MAX_TRIES = 50  # places that are tried for a digit


class Scenes:
    """The scenes of a split, see `tfm.data.batches.generated.Generator`.

    Args:
      config: the scenes.
      split: the split of scikit-learn's digits.

    Raises:
      UserError: if scikit-learn is missing, or the split does not exist.
    """

    channels = 1

    def __init__(self, config: BoxedPicturesConfig, split: str):
        self._split = find_split(split)
        source = open_images(ImagesConfig(kind="digits"), split)
        self._digits, self._labels = source.take(np.arange(len(source)))
        self._config = config
        self.evaluated = config.evaluated
        self.label_names = source.label_names
        content = repr((dataclasses.astuple(config), split, source.fingerprint))
        self.fingerprint = hashlib.sha256(content.encode()).hexdigest()

    def make(self, *numbers: int) -> BoxedPicture:
        """Returns the scene of these numbers: `EVALUATION` and an index, or seed, step and row.

        The same numbers give the same scene. It has 1 to `max_objects` digits, but a digit for which no place
        is found is left out.
        """
        config = self._config
        rng = np.random.default_rng((self._split, *numbers))
        image = np.zeros((config.height, config.width, 1), np.uint8)
        limits = np.array([config.height, config.width])
        corners: list[np.ndarray] = []
        chosen = []
        for index in rng.integers(len(self._digits), size=rng.integers(1, config.max_objects, endpoint=True)):
            for corner in rng.integers(limits - DIGIT, size=(MAX_TRIES, 2), endpoint=True):
                if all(_cell_overlap(corner, other) <= config.max_overlap for other in corners):
                    top, left = corner
                    place = image[top : top + DIGIT, left : left + DIGIT]
                    np.maximum(place, self._digits[index], out=place)
                    corners.append(corner)
                    chosen.append(index)
                    break
        boxes = [_find_box(self._digits[i], corner) for i, corner in zip(chosen, corners, strict=True)]
        shares = np.array(boxes, np.float32) / np.tile(limits[::-1], 2).astype(np.float32)
        return BoxedPicture(image.astype(np.float32) / 8 - 1, shares, self._labels[chosen])

    def size(self, index: int) -> tuple[int, int]:
        """Returns height and width of an evaluated scene in pixels."""
        return self._config.height, self._config.width

    def truth(self, index: int) -> Truth:
        """Returns the objects of an evaluated scene in pixels."""
        scene = self.make(EVALUATION, index)
        return make_truth(to_pixels(scene.boxes, self.size(index)), scene.labels)

    def assemble(self, examples: list[BoxedPicture], rows: int) -> Batch:
        """Returns a batch of scenes. Padding fills it up to `rows`."""
        return assemble(self._config, self.channels, examples, rows)


def _find_box(digit: np.ndarray, corner: np.ndarray) -> list[float]:
    """Returns center x, center y, width and height of the pixels of a digit that are not black, in pixels."""
    rows, columns = (np.flatnonzero(digit[..., 0].any(axis)) for axis in (1, 0))
    (top, left), height, width = corner, np.ptp(rows) + 1, np.ptp(columns) + 1
    return [left + columns[0] + width / 2, top + rows[0] + height / 2, width, height]


def _cell_overlap(one: np.ndarray, other: np.ndarray) -> float:
    """Returns the intersection over union of two cells of a digit by their corners."""
    shared = np.maximum(DIGIT - np.abs(one - other), 0).prod()
    return float(shared / (2 * DIGIT**2 - shared))
