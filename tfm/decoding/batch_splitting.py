"""Runs batches on the device one after the other, and splits those that do not fit into its memory."""

import collections
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax

from tfm.errors import UserError
from tfm.runtime.memory import available_memory, format_bytes, is_out_of_memory

MAX_MEMORY_FRACTION = 0.75  # for a batch of more than one row; a single row may use all of it
Batch = tuple[list[int], list[int]]  # (indices, rows); rows beyond the indices only fill the shape


def run_batches(
    batches: Iterable[Batch],
    compute: Callable[[list[int]], Any],
    estimate: Callable[[list[int]], int | None],
    describe: Callable[[list[int]], tuple[str, str]],
) -> Iterator[tuple[list[int], Any]]:
    """Computes each batch on the device while the host reads the results of the one before.

    A batch whose estimate is above the available memory, or for which the device has run out of memory, is
    halved, and its halves too, down to single rows. Later batches have at most as many rows as then
    succeeded.

    Args:
      batches: iterable of (indices, rows), as `tfm.data.batching.decode_rows` yields.
      compute: rows -> a tree of arrays whose first axis is the rows; need not wait for them.
      estimate: rows -> estimated bytes of all that they take on a device, or None for no estimate.
      describe: rows -> (what they are, what to do), for the error message about a row that does not fit.

    Yields:
      (indices, tree of NumPy arrays), each index once.

    Raises:
      UserError: a single row does not fit.
    """
    runner = _Runner(compute, estimate, describe)
    pending = collections.deque()
    for batch in batches:
        for indices, rows in runner.split(*batch):
            pending.append((indices, rows, runner.start(rows)))
            if len(pending) > 1:
                yield from runner.fetch(*pending.popleft())
    while pending:
        yield from runner.fetch(*pending.popleft())


class _Runner:
    """The functions of one `run_batches`, and how many rows fit on the device, as far as is known."""

    def __init__(self, compute, estimate, describe):
        self._compute, self._estimate, self._describe = compute, estimate, describe
        self._memory, self._max_rows = available_memory(), None

    def split(self, indices, rows):
        """Yields the batch, or parts of it that are estimated to fit."""
        if self._fits(rows):
            yield indices, rows
            return
        for half in _halves(indices, rows):
            yield from self.split(*half)

    def start(self, rows):
        """The arrays being computed, or the device's error where it ran out of memory."""
        try:
            return self._compute(rows)
        except jax.errors.JaxRuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return error

    def fetch(self, indices, rows, started):
        """Yields the results on the host; computes halves where the device ran out of memory."""
        try:
            if isinstance(started, Exception):
                raise started
            yield indices, jax.device_get(started)
            return
        except jax.errors.JaxRuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if len(rows) == 1:
                reason = str(error).split("\n")[0]
                self._raise_too_large(rows, f"does not fit into the memory of the device ({reason})")
        del started  # frees its memory on the device
        half = (len(rows) + 1) // 2
        self._max_rows = min(self._max_rows or half, half)
        for smaller_indices, smaller_rows in self.split(indices, rows):
            yield from self.fetch(smaller_indices, smaller_rows, self.start(smaller_rows))

    def _fits(self, rows):
        """Whether to try all rows at once; raises a UserError for a single row that is too large."""
        estimate, memory = self._estimate(rows), self._memory
        known = estimate is not None and memory
        if len(rows) == 1:
            if known and estimate > memory:
                self._raise_too_large(
                    rows, f"needs about {format_bytes(estimate)} and there are {format_bytes(memory)}"
                )
            return True
        if self._max_rows is not None and len(rows) > self._max_rows:
            return False
        return not known or estimate <= MAX_MEMORY_FRACTION * memory

    def _raise_too_large(self, rows, reason):
        what, remedy = self._describe(rows)
        raise UserError(f"{what} {reason}: {remedy}.")


def _halves(indices, rows):
    """Both halves; the second is left out where its rows only filled the shape."""
    middle = (len(rows) + 1) // 2
    for part in (slice(None, middle), slice(middle, None)):
        if indices[part]:
            yield indices[part], rows[part]
