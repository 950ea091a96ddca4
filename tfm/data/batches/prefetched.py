"""The members of `tfm.training.task.Data` that all tasks of tfm share."""

from collections.abc import Iterator
from typing import Any

from tfm.data.batches.schedule import Batch, prefetch


class PrefetchedData:
    """Training batches that a thread prefetches, and the fingerprints of the data.

    Args:
      batches: has `batch(step)`, `describe(step)` and `largest_batch()`.
      fingerprints: {name: fingerprint} of the data and of what prepared the data.
    """

    def __init__(self, batches: Any, fingerprints: dict[str, str]):
        self.batches = batches
        self._fingerprints = fingerprints

    def train_batches(self, start_step: int) -> Iterator[Batch]:
        """Returns an endless iterator over the batches from `start_step` on."""
        return prefetch(self.batches, start_step)

    def identity(self) -> dict[str, str]:
        """Returns {name: fingerprint} of the data and of what prepared the data."""
        return self._fingerprints

    def describe_batch(self, step: int) -> dict[str, Any]:
        """Returns what identifies the batch of `step` in the data."""
        return self.batches.describe(step)

    def example(self) -> Batch:
        """Returns a batch of zeros of the largest shape."""
        return self.batches.largest_batch()
