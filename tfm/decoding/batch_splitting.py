"""Runs batches on the device, and splits those that do not fit into its memory."""

import collections
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import jax

from tfm.errors import UserError
from tfm.memory import available_memory, format_bytes, is_out_of_memory

# A CPU computes two small programs sooner side by side than one after the other on all cores. An accelerator
# gets the next batch while the host reads the results of the one before.
BATCHES_AT_ONCE = 2
MAX_MEMORY_FRACTION = 0.75 / BATCHES_AT_ONCE  # of a batch; a single row may use all of it
Batch = tuple[list[int], list[int]]  # (indices, rows); rows beyond the indices only fill the shape


def run_batches(
    batches: Iterable[Batch],
    compute: Callable[[list[int]], Any],
    estimate: Callable[[list[int]], int | None],
    describe: Callable[[list[int]], tuple[str, str]],
) -> Iterator[tuple[list[int], Any]]:
    """Computes `BATCHES_AT_ONCE` batches at a time, each on a thread of its own.

    A batch whose estimate is above its part of the available memory, or for which the device has run out of
    memory, is halved, and its halves too, down to single rows. Later batches have at most as many rows as
    then succeeded.

    Args:
      batches: iterable of (indices, rows), as `tfm.data.batching.decode_rows` yields.
      compute: rows -> a tree of arrays whose first axis is the rows; need not wait for them. No two threads
        call it at once.
      estimate: rows -> estimated bytes of all that they take on a device, or None for no estimate.
      describe: rows -> (what they are, what to do), for the error message about a row that does not fit.

    Yields:
      (indices, tree of NumPy arrays), each index once.

    Raises:
      UserError: a single row does not fit.
    """
    runner = _Runner(compute, estimate, describe)
    pending: collections.deque = collections.deque()
    pool = ThreadPoolExecutor(BATCHES_AT_ONCE)

    def finish():
        indices, rows, started = pending.popleft()
        found = started.result()
        if isinstance(found, Exception) and pending:
            wait([each for *_, each in pending])
            if len(rows) == 1:  # by itself it may fit
                found = runner.start(rows)
        return runner.results(indices, rows, found)

    try:
        for batch in batches:
            for indices, rows in runner.split(*batch):
                alone = runner.exceeds_share(rows)  # a single row
                while len(pending) > (0 if alone else BATCHES_AT_ONCE):
                    yield from finish()
                pending.append((indices, rows, pool.submit(runner.start, rows)))
                if alone:
                    yield from finish()
        while pending:
            yield from finish()
    finally:
        pool.shutdown(cancel_futures=True)


class _Runner:
    """The functions of one `run_batches`, and how many rows fit on the device, as far as is known."""

    def __init__(self, compute, estimate, describe):
        self._compute, self._estimate, self._describe = compute, estimate, describe
        self._memory, self._max_rows = available_memory(), None
        self._computing = threading.Lock()  # else two threads would compile the same program

    def split(self, indices, rows):
        """Yields the batch, or parts of it that are estimated to fit."""
        if self._fits(rows):
            yield indices, rows
            return
        for half in _halves(indices, rows):
            yield from self.split(*half)

    def exceeds_share(self, rows):
        """Whether they are estimated to take more than one of several batches at once may."""
        return self._exceeds(self._estimate(rows), MAX_MEMORY_FRACTION)

    def start(self, rows):
        """The results on the host, or the device's error where it ran out of memory."""
        try:
            with self._computing:
                started = self._compute(rows)
            return jax.device_get(started)
        except jax.errors.JaxRuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return error

    def results(self, indices, rows, found):
        """Yields what `start` found; where the device ran out of memory, computes halves."""
        if not isinstance(found, Exception):
            yield indices, found
            return
        if len(rows) == 1:
            reason = str(found).split("\n")[0]
            self._raise_too_large(rows, f"does not fit into the memory of the device ({reason})")
        half = (len(rows) + 1) // 2
        self._max_rows = min(self._max_rows or half, half)
        for smaller_indices, smaller_rows in self.split(indices, rows):
            yield from self.results(smaller_indices, smaller_rows, self.start(smaller_rows))

    def _fits(self, rows):
        """Whether to try all rows at once; raises a UserError for a single row that is too large."""
        if len(rows) == 1:
            estimate, memory = self._estimate(rows), self._memory
            if memory is not None and self._exceeds(estimate, 1):
                there = format_bytes(memory)
                self._raise_too_large(rows, f"needs about {format_bytes(estimate)} and there are {there}")
            return True
        if self._max_rows is not None and len(rows) > self._max_rows:
            return False
        return not self.exceeds_share(rows)

    def _exceeds(self, estimate, fraction):
        """Whether an estimate is above this fraction of the memory, where both are known."""
        return bool(self._memory) and estimate is not None and estimate > fraction * self._memory

    def _raise_too_large(self, rows, reason):
        what, remedy = self._describe(rows)
        raise UserError(f"{what} {reason}: {remedy}.")


def _halves(indices, rows):
    """Both halves; the second is left out where its rows only filled the shape."""
    middle = (len(rows) + 1) // 2
    for part in (slice(None, middle), slice(middle, None)):
        if indices[part]:
            yield indices[part], rows[part]
