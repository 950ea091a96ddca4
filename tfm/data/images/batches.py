"""The batches of labelled images.

The order and the augmentation of the batches depend only on the seed and the step. A batch is a dict of

    images   float32 [B, height, width, C], from -1 (darkest) to 1 (brightest); 0 in padding rows
    labels   int32 [B]; 0 in padding rows
    weights  float32 [B]; 1, or 0 in padding rows
"""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfm.data.config import ImagesConfig
from tfm.data.images.augmentation import Crops, augment
from tfm.data.images.opening import Images

Batch = dict[str, np.ndarray]
ORDER, AUGMENTATION, CROPS = 0, 1, 2  # numbers of the random streams of a seed


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
        self, source: Images, config: ImagesConfig, seed: int, *, host_index: int = 0, host_count: int = 1
    ):
        self._source, self._config, self._seed = source, config, seed
        self._host_index, self._host_count = host_index, host_count
        self.rows = -(-config.batch_size // host_count)  # rows of a batch on this host

    def batch(self, step: int) -> Batch:
        """Returns this host's share of the batch of `step`, counted from 0."""
        mine = slice(self._host_index, None, self._host_count)
        indices = self._batch_indices(step)[mine]
        if not len(indices):  # there are more hosts than images in a batch
            return self.largest_batch()
        images, labels = self._source.take(indices, self._draw_crops(step, mine))
        rng = np.random.default_rng((self._seed, AUGMENTATION, step))
        images = augment(images, self._config, rng, self._config.batch_size, mine)
        return assemble(images, labels, self._source.largest, self.rows)

    def _draw_crops(self, step: int, mine: slice) -> Crops | None:
        """Returns the crops of this host's images, or None if images are read whole."""
        if not self._config.random_crop:
            return None
        rng = np.random.default_rng((self._seed, CROPS, step))
        return Crops(self._config.random_crop, rng.random((self._config.batch_size, 4))[mine])

    def describe(self, step: int) -> dict[str, Any]:
        """Returns the epoch of the first image of a batch, and the indices of its images on all hosts."""
        epoch = step * self._config.batch_size // len(self._source)
        return {"epoch": epoch, "images": self._batch_indices(step).tolist()}

    def largest_batch(self) -> Batch:
        """Returns a batch of padding rows. All batches have its shape."""
        images, labels = self._source.take(np.zeros(1, int))
        return assemble(images[:0], labels[:0], self._source.largest, self.rows)

    def _batch_indices(self, step: int) -> np.ndarray:
        """Returns the indices of a step's images on all hosts, int [batch_size]."""
        start = step * self._config.batch_size
        places = np.arange(start, start + self._config.batch_size)
        epochs, within = np.divmod(places, len(self._source))
        size = len(self._source)
        pairs = zip(epochs, within, strict=True)
        return np.array([shuffle_epoch(self._seed, int(epoch), size)[i] for epoch, i in pairs])


@functools.lru_cache(maxsize=4)
def shuffle_epoch(seed: int, epoch: int, size: int) -> np.ndarray:
    """Returns the order of `size` examples in an epoch of a run with this seed, int [size]."""
    return np.random.default_rng((seed, ORDER, epoch)).permutation(size)


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
