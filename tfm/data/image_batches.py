"""Batches of labelled images, in an order and with an augmentation that only seed and step decide.

A batch is a dict of

    images   float32 [B, height, width, C], from -1, the darkest, to 1
    labels   int32 [B]
    weights  float32 [B], 1; 0 for a row that only fills the batch up, in which all is 0
"""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfm.data.images import ImageDataConfig, Images

Batch = dict[str, np.ndarray]
ORDER, AUGMENTATION = 0, 1  # of the random streams of a seed


class ImageBatches:
    """Full batches without end: `batch(step)` is a pure function of the step, the seed and the host.

    Every epoch has each image once, in another order; a batch may hold the end of one and the start of the
    next.
    """

    def __init__(
        self, source: Images, config: ImageDataConfig, seed: int, *, host_index: int = 0, host_count: int = 1
    ):
        self._source, self._config, self._seed = source, config, seed
        self._host_index, self._host_count = host_index, host_count
        self.rows = -(-config.batch_size // host_count)  # of this host
        self._order = functools.lru_cache(maxsize=2)(self._shuffle)

    def batch(self, step: int) -> Batch:
        """The batch of `step`, counted from 0: this host's share of it."""
        mine = slice(self._host_index, None, self._host_count)
        images, labels = self._source.take(self._chosen(step)[mine])
        rng = np.random.default_rng((self._seed, AUGMENTATION, step))
        images = augment(images, self._config, rng, self._config.batch_size, mine)
        return assemble(images, labels, self._source.largest, self.rows)

    def describe(self, step: int) -> dict[str, Any]:
        """Where the batch of `step` comes from: the epoch of its first image, and its images on all hosts."""
        epoch = step * self._config.batch_size // len(self._source)
        return {"epoch": epoch, "images": self._chosen(step).tolist()}

    def _chosen(self, step):
        """The indices of a step's images on all hosts."""
        first = step * self._config.batch_size
        places = np.arange(first, first + self._config.batch_size)
        epochs, within = np.divmod(places, len(self._source))
        return np.array([self._order(int(epoch))[i] for epoch, i in zip(epochs, within, strict=True)])

    def _shuffle(self, epoch):
        return np.random.default_rng((self._seed, ORDER, epoch)).permutation(len(self._source))


def eval_batches(source: Images, batch_size: int) -> Iterator[Batch]:
    """One pass over all images in their order; the last batch is filled up with rows of zeros."""
    for first in range(0, len(source), batch_size):
        indices = np.arange(first, min(first + batch_size, len(source)))
        images, labels = source.take(indices)
        yield assemble(images, labels, source.largest, batch_size)


def assemble(images: np.ndarray, labels: np.ndarray, largest: float, rows: int) -> Batch:
    """Images of pixels from 0 to `largest`, and labels, as a batch of so many rows."""
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
    """Images [n, height, width, C], moved and mirrored at random as the config says.

    Args:
      images: this host's of a batch.
      config: names the changes.
      rng: of the step.
      count: images of the batch on all hosts, for each of which the same numbers are drawn on every host.
      mine: which of these are this host's.
    """
    shifts = rng.integers(-config.max_shift, config.max_shift, (count, 2), endpoint=True)[mine]
    flipped = rng.random(count)[mine] < 0.5
    if config.max_shift:
        images = shift(images, shifts)
    if config.flip:
        images = np.where(flipped[:, None, None, None], images[:, :, ::-1], images)
    return images


def shift(images: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """Images [n, height, width, C] moved down and right by shifts, int [n, 2]; zeros come in at the edge."""
    _, height, width, _ = images.shape
    most = int(np.abs(shifts).max(initial=0))
    padded = np.pad(images, ((0, 0), (most, most), (most, most), (0, 0)))
    rows = most - shifts[:, :1] + np.arange(height)  # [n, height]
    columns = most - shifts[:, 1:] + np.arange(width)
    index = np.arange(len(images))[:, None, None]
    return padded[index, rows[:, :, None], columns[:, None, :]]
