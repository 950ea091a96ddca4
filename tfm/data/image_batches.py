"""Batches of labelled images. Their order and augmentation depend only on the seed and the step.

A batch is a dict of

    images   float32 [B, height, width, C], from -1 (darkest) to 1 (brightest); 0 in padding rows
    labels   int32 [B]; 0 in padding rows
    weights  float32 [B]; 1, or 0 in padding rows
"""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfm.data.images import ImageDataConfig, Images

Batch = dict[str, np.ndarray]
ORDER, AUGMENTATION = 0, 1  # numbers of the random streams of a seed


class ImageBatches:
    """An endless sequence of full batches. `batch(step)` depends only on the step, the seed and the host.

    Each epoch contains each image once, in a new random order. A batch may contain the end of an epoch and
    the start of the next.

    Args:
      source: the images.
      config: batch size over all hosts, and augmentation.
      seed: seed of the order and the augmentation.
      host_index: number of this host, from 0.
      host_count: number of hosts. Host i reads the images i, i + host_count, ... of each batch.
    """

    def __init__(
        self, source: Images, config: ImageDataConfig, seed: int, *, host_index: int = 0, host_count: int = 1
    ):
        self._source, self._config, self._seed = source, config, seed
        self._host_index, self._host_count = host_index, host_count
        self.rows = -(-config.batch_size // host_count)  # rows of a batch on this host
        self._order = functools.lru_cache(maxsize=2)(self._shuffle)

    def batch(self, step: int) -> Batch:
        """Returns this host's share of the batch of `step`, counted from 0."""
        mine = slice(self._host_index, None, self._host_count)
        images, labels = self._source.take(self._batch_indices(step)[mine])
        rng = np.random.default_rng((self._seed, AUGMENTATION, step))
        images = augment(images, self._config, rng, self._config.batch_size, mine)
        return assemble(images, labels, self._source.largest, self.rows)

    def describe(self, step: int) -> dict[str, Any]:
        """Returns the epoch of the first image of a batch, and the indices of its images on all hosts."""
        epoch = step * self._config.batch_size // len(self._source)
        return {"epoch": epoch, "images": self._batch_indices(step).tolist()}

    def _batch_indices(self, step: int) -> np.ndarray:
        """Returns the indices of a step's images on all hosts, int [batch_size]."""
        start = step * self._config.batch_size
        places = np.arange(start, start + self._config.batch_size)
        epochs, within = np.divmod(places, len(self._source))
        return np.array([self._order(int(epoch))[i] for epoch, i in zip(epochs, within, strict=True)])

    def _shuffle(self, epoch: int) -> np.ndarray:
        """Returns the order of the images in an epoch."""
        return np.random.default_rng((self._seed, ORDER, epoch)).permutation(len(self._source))


def eval_batches(source: Images, batch_size: int) -> Iterator[Batch]:
    """Yields batches of all images in their order. Padding rows fill the last batch."""
    for start in range(0, len(source), batch_size):
        indices = np.arange(start, min(start + batch_size, len(source)))
        images, labels = source.take(indices)
        yield assemble(images, labels, source.largest, batch_size)


def assemble(images: np.ndarray, labels: np.ndarray, largest: float, rows: int) -> Batch:
    """Builds a batch.

    Args:
      images: pixels from 0 to `largest`, [n, height, width, C].
      labels: integers [n].
      largest: value of the brightest pixel.
      rows: rows of the batch, at least n. The others are padding rows.
    """
    count = len(images)
    batch = {
        "images": np.zeros((rows, *images.shape[1:]), np.float32),
        "labels": np.zeros(rows, np.int32),
        "weights": np.zeros(rows, np.float32),
    }
    batch["images"][:count] = images.astype(np.float32) * np.float32(2 / largest) - 1
    batch["labels"][:count] = labels
    batch["weights"][:count] = 1
    return batch


def augment(
    images: np.ndarray, config: ImageDataConfig, rng: np.random.Generator, count: int, mine: slice
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
