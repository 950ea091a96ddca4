"""Runs one program over many rows, in batches that fit into the memory of the device.

Translation, generation and scoring share this loop. Each passes a compiled program and arrays of its rows.
"""

import contextlib
import math
import operator
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NoReturn

import jax
import numpy as np

from tfm.data.batches.rows import bucket_width
from tfm.data.tokenizer import PAD_ID
from tfm.errors import UserError
from tfm.memory import available_memory, format_bytes, is_out_of_memory

# A CPU computes two small programs faster at the same time than one after the other. An accelerator receives
# the next batch while the host reads the results of the batch before.
BATCHES_AT_ONCE = 2
MAX_MEMORY_FRACTION = 0.75 / BATCHES_AT_ONCE  # for one of several batches; one row may use all memory


def map_rows(
    program: Callable[..., Any],
    make_arguments: Callable[[list[int]], tuple],
    lengths: Sequence[int],
    *,
    batch_size: int,
    describe: Callable[[int], tuple[str, str]],
) -> list[Any]:
    """Computes a program for each row, and returns the results in the order of the rows.

    Rows of similar length share a batch. Two batches run at once, each on its own thread. If the program of a
    batch needs more than its share of the memory, or if the device runs out of memory, the batch is split
    into halves, quarters and so on, down to single rows. After the device ran out of memory, no batch has as
    many rows again.

    Args:
      program: A function made by `jax.jit`. The leaves of its result have the rows as their first axis.
      make_arguments: Maps the indices of the rows of a batch to the arguments of `program`. A row may occur
        several times. The number of rows is `batch_size` or a power of two, so that there are few shapes.
      lengths: Number of tokens of each row.
      batch_size: Maximum number of rows of a batch.
      describe: Maps the index of a row that does not fit to (subject, advice) of the error message.

    Returns:
      A list with a tree of NumPy arrays for each row.

    Raises:
      UserError: A single row does not fit into the memory.
    """
    results: list[Any] = [None] * len(lengths)
    batches: deque[tuple[list[int], Future]] = deque()
    runner = _Runner(program, make_arguments, describe, batch_size)
    pool = ThreadPoolExecutor(BATCHES_AT_ONCE)

    def collect():
        indices, future = batches.popleft()
        for index, result in zip(indices, future.result(), strict=True):
            results[index] = result

    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])  # the largest program comes first
    try:
        for start in range(0, len(order), batch_size):
            indices = order[start : start + batch_size]
            batches.append((indices, pool.submit(runner.run, indices)))
            if len(batches) > BATCHES_AT_ONCE:
                collect()
        while batches:
            collect()
    finally:
        pool.shutdown(cancel_futures=True)
    return results


def pad_ids(rows: Sequence[Sequence[int]], fill: int = PAD_ID) -> np.ndarray:
    """Returns lists of ids as int32 [B, M], padded at the end. M is one of few widths, for few programs."""
    array = np.full((len(rows), bucket_width(max(map(len, rows)))), fill, np.int32)
    for row, ids in enumerate(rows):
        array[row, : len(ids)] = ids
    return array


def measure_memory(program: Any, arguments: tuple) -> int:
    """Compiles a program and returns the bytes that it needs on one device, or 0 if they are unknown.

    `jax.jit` keeps the program, so that calling it does not compile again.
    """
    memory = program.lower(*arguments).compile().memory_analysis()
    if memory is None:  # some platforms do not report it
        return 0
    return memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes


class _Runner:
    """Runs the batches of one `map_rows`, and remembers how many rows fit into the memory."""

    def __init__(
        self,
        program: Callable[..., Any],
        make_arguments: Callable[[list[int]], tuple],
        describe: Callable[[int], tuple[str, str]],
        batch_size: int,
    ):
        self._program, self._make_arguments, self._describe = program, make_arguments, describe
        self._memory, self._max_rows = available_memory(), batch_size
        self._compiling, self._reserving = threading.Lock(), threading.Lock()
        self._places = threading.Semaphore(BATCHES_AT_ONCE)

    def run(self, indices: list[int]) -> list[Any]:
        """Returns the result of each row. Splits the rows if they do not fit."""
        if len(indices) > self._max_rows:
            return self._run_parts(indices, self._max_rows)
        count = min(self._max_rows, 1 << (len(indices) - 1).bit_length())
        # Rows that only fill the shape repeat the last one, because a search for padding might not end early.
        rows = [*indices, *indices[-1:] * (count - len(indices))]
        try:
            arguments = self._make_arguments(rows)
            needed = 0
            if self._memory:
                with self._compiling:  # otherwise two threads would compile the same program
                    needed = measure_memory(self._program, arguments)
            share = MAX_MEMORY_FRACTION * (self._memory or math.inf)
            if needed > share and count > 1:
                return self._run_parts(indices, max(1, count >> math.ceil(math.log2(needed / share))))
            if self._memory and needed > self._memory:
                free = format_bytes(self._memory)
                self._raise_too_large(indices, f"needs about {format_bytes(needed)} and there are {free}")
            return self._compute(arguments, len(indices), needs_all=needed > share)
        except jax.errors.JaxRuntimeError as error:
            if not is_out_of_memory(error):
                raise
        if count > 1:
            self._max_rows = min(self._max_rows, count // 2)
            return self._run_parts(indices, self._max_rows)
        try:  # the row may fit while no other batch runs
            return self._compute(arguments, 1, needs_all=True)
        except jax.errors.JaxRuntimeError as error:
            if not is_out_of_memory(error):
                raise
            reason = str(error).split("\n")[0]
            self._raise_too_large(indices, f"does not fit into the memory of the device ({reason})")

    def _run_parts(self, indices: list[int], size: int) -> list[Any]:
        parts = (indices[start : start + size] for start in range(0, len(indices), size))
        return [result for part in parts for result in self.run(part)]

    def _compute(self, arguments: tuple, count: int, needs_all: bool) -> list[Any]:
        with self._reserve(BATCHES_AT_ONCE if needs_all else 1):
            arrays = jax.device_get(self._program(*arguments))
        return [jax.tree.map(operator.itemgetter(row), arrays) for row in range(count)]

    @contextlib.contextmanager
    def _reserve(self, places: int) -> Iterator[None]:
        """Waits until this many of the `BATCHES_AT_ONCE` places are free, and occupies them."""
        with self._reserving:  # otherwise two threads might each hold half of the places that both need
            for _ in range(places):
                self._places.acquire()
        try:
            yield
        finally:
            for _ in range(places):
                self._places.release()

    def _raise_too_large(self, indices: list[int], reason: str) -> NoReturn:
        subject, advice = self._describe(indices[0])
        raise UserError(f"{subject} {reason}. {advice}.")
