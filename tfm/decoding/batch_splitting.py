"""Runs batches on the device one after the other, in parts where a batch does not fit into its memory."""

import collections

import jax

from tfm.errors import UserError
from tfm.runtime.memory import available_memory, gib, is_out_of_memory

LARGEST_SHARE = 0.75  # of the memory, for a batch of more than one row; a single row may try all of it


def run_batches(batches, compute, needed, advice):
    """Computes each batch, one on the device while the host reads the one before.

    A batch whose estimate is more than there is, or that the device has too little memory for, is halved, and
    its halves too, down to single rows. Batches after it have at most as many rows as what was then computed.

    Args:
      batches: iterable of (indices, rows), as `tfm.data.batching.decode_rows` yields; rows beyond the indices
        only fill the shape.
      compute: rows -> a tree of arrays whose first axis is the rows; need not wait for them.
      needed: rows -> estimated bytes of all that they take on a device, or None for no estimate.
      advice: rows -> (what it is, what to do), for the error message about a single row that does not fit.

    Yields:
      (indices, tree of NumPy arrays), each index once.

    Raises:
      UserError: a single row does not fit.
    """
    runner = _Runner(compute, needed, advice)
    pending = collections.deque()
    for batch in batches:
        for indices, rows in runner.parts(*batch):
            pending.append((indices, rows, runner.start(rows)))
            if len(pending) > 1:
                yield from runner.fetch(*pending.popleft())
    while pending:
        yield from runner.fetch(*pending.popleft())


class _Runner:
    """The functions of one `run_batches`, and how many rows the device takes at once, as far as is known."""

    def __init__(self, compute, needed, advice):
        self._compute, self._needed, self._advice = compute, needed, advice
        self._memory, self._most_rows = available_memory(), None

    def parts(self, indices, rows):
        """Yields the batch, or those halves of it that are estimated to fit."""
        if self._fits(rows):
            yield indices, rows
            return
        for half in _halves(indices, rows):
            yield from self.parts(*half)

    def start(self, rows):
        """The arrays being computed, or the device's error where it has too little memory."""
        try:
            return self._compute(rows)
        except jax.errors.JaxRuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return error

    def fetch(self, indices, rows, started):
        """Yields the results on the host; computes halves where the device had too little memory."""
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
                self._refuse(rows, f"does not fit into the memory of the device ({reason})")
        del started  # frees what the device holds of it
        half = (len(rows) + 1) // 2
        self._most_rows = min(self._most_rows or half, half)
        for smaller_indices, smaller_rows in self.parts(indices, rows):
            yield from self.fetch(smaller_indices, smaller_rows, self.start(smaller_rows))

    def _fits(self, rows):
        """Whether the rows may be tried at once; raises a UserError for a single row that is too large."""
        estimate, memory = self._needed(rows), self._memory
        known = estimate is not None and memory
        if len(rows) == 1:
            if known and estimate > memory:
                self._refuse(rows, f"needs about {gib(estimate)} and there are {gib(memory)}")
            return True
        if self._most_rows is not None and len(rows) > self._most_rows:
            return False
        return not known or estimate <= LARGEST_SHARE * memory

    def _refuse(self, rows, why):
        what, remedy = self._advice(rows)
        raise UserError(f"{what} {why}: {remedy}.")


def _halves(indices, rows):
    """Both halves; the second is left out where its rows only filled the shape."""
    middle = (len(rows) + 1) // 2
    for part in (slice(None, middle), slice(middle, None)):
        if indices[part]:
            yield indices[part], rows[part]
