"""Random changes of training images."""

import math
from typing import NamedTuple

import numpy as np

from tfm.data.config import ImagesConfig

LARGEST_RATIO = 4 / 3  # of width to height of a crop, relative to the image; the smallest is its inverse


class Crops(NamedTuple):
    """Random rectangles of images. They are resized to the size of the images.

    Area and aspect ratio are drawn as by Szegedy et al. 2015, "Going deeper with convolutions", section 6.

    Attributes:
      smallest_area: smallest area of a rectangle, as a share of the area of its image.
      numbers: for each image, uniform random numbers from 0 to 1 for area, aspect ratio, top and left,
        [n, 4].
    """

    smallest_area: float
    numbers: np.ndarray

    def boxes(self, sizes: np.ndarray) -> list[tuple[float, float, float, float]]:
        """Returns left, top, right and bottom in pixels for images of heights and widths [n, 2]."""
        return [self._box(*row, *size) for row, size in zip(self.numbers, sizes.tolist(), strict=True)]

    def _box(
        self, area: float, ratio: float, top: float, left: float, height: int, width: int
    ) -> tuple[float, float, float, float]:
        share = self.smallest_area + area * (1 - self.smallest_area)
        stretch = math.sqrt(LARGEST_RATIO ** (2 * ratio - 1))
        side = math.sqrt(share)
        box_height, box_width = min(1.0, side / stretch) * height, min(1.0, side * stretch) * width
        y, x = top * (height - box_height), left * (width - box_width)
        return x, y, x + box_width, y + box_height


def augment(
    images: np.ndarray, config: ImagesConfig, rng: np.random.Generator, count: int, mine: slice
) -> np.ndarray:
    """Shifts and mirrors images at random.

    Args:
      images: images of this host in a batch, [n, height, width, C].
      config: the maximum shift, and whether to mirror.
      rng: random numbers of the step, equal on all hosts.
      count: images of the batch on all hosts. Every host draws the numbers of all of them, so that the
        augmentation of an image does not depend on the number of hosts.
      mine: the images of this host among all images of the batch.

    Returns:
      The changed images, [n, height, width, C].
    """
    shifts = rng.integers(-config.max_shift, config.max_shift, (count, 2), endpoint=True)[mine]
    flipped = rng.random(count)[mine] < 0.5
    if config.max_shift:
        images = shift(images, shifts)
    if config.flip:
        images = np.where(flipped[:, None, None, None], images[:, :, ::-1], images)
    return images


def crop_arrays(images: np.ndarray, crops: Crops) -> np.ndarray:
    """Returns a part of each image [n, height, width, C] at the size of the whole image, in its dtype."""
    from PIL import Image

    count, height, width, channels = images.shape
    boxes = crops.boxes(np.array([[height, width]] * count))
    cropped = np.empty_like(images)
    for number, box in enumerate(boxes):
        for channel in range(channels):
            plane = Image.fromarray(images[number, :, :, channel].astype(np.float32))
            values = np.asarray(plane.resize((width, height), Image.Resampling.BILINEAR, box=box))
            is_integer = images.dtype.kind == "u"
            cropped[number, :, :, channel] = np.rint(values) if is_integer else values
    return cropped


def shift(images: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """Moves images [n, height, width, C] by shifts, int [n, 2]. Zeros fill the margin.

    The first shift of an image is in pixels down, and the second in pixels to the right. Negative shifts move
    the image up and to the left.
    """
    _, height, width, _ = images.shape
    most = int(np.abs(shifts).max(initial=0))
    padded = np.pad(images, ((0, 0), (most, most), (most, most), (0, 0)))
    rows = most - shifts[:, :1] + np.arange(height)  # [n, height]
    columns = most - shifts[:, 1:] + np.arange(width)
    index = np.arange(len(images))[:, None, None]
    return padded[index, rows[:, :, None], columns[:, None, :]]
