"""Random changes of training images."""

import numpy as np

from tfm.data.config import ImagesConfig


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


def shift(images: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """Moves images [n, height, width, C] down and right by shifts, int [n, 2]. Zeros fill the margin."""
    _, height, width, _ = images.shape
    most = int(np.abs(shifts).max(initial=0))
    padded = np.pad(images, ((0, 0), (most, most), (most, most), (0, 0)))
    rows = most - shifts[:, :1] + np.arange(height)  # [n, height]
    columns = most - shifts[:, 1:] + np.arange(width)
    index = np.arange(len(images))[:, None, None]
    return padded[index, rows[:, :, None], columns[:, None, :]]
