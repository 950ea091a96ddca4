"""A loop that runs one program over many rows, in batches that fit into the memory of the device.

Translation, generation and scoring use this loop with different programs.
"""

import contextlib
import contextvars
import functools
import math
import operator
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

from tfm.data.batches.rows import bucket_width
from tfm.data.tokenizers.protocol import PAD_ID
from tfm.devices.backend import is_cpu, keep_contexts
from tfm.devices.memory import format_bytes, free_memory, is_out_of_memory
from tfm.devices.mesh import count_row_shards, fetch, find_mesh
from tfm.errors import UserError, first_line

# A CPU computes two small programs at the same time faster than one after the other. An accelerator receives
# the next batch while the host reads the results of the previous batch.
BATCHES_AT_ONCE = 2
MIN_ACCELERATOR_WIDTH = 32  # tokens
# Multiplications for padding after which a batch gets a program that fits it. One core of a CPU computes them
# in about half a second. XLA compiles a search of a small model in three to four seconds.
MAX_PADDING_WORK = 5e10
# Maximum ratio of the sizes of a batch with and without padding, on each axis. The work of attention grows
# with the square of the width, and a single sentence should not wait for a large batch.
MAX_PADDING_RATIO = 4
_HAS_FEW_WIDTHS: contextvars.ContextVar[bool] = contextvars.ContextVar("has few widths", default=False)
# Fraction of the memory that one of `BATCHES_AT_ONCE` batches may use. A batch of a single row may use all.
MAX_MEMORY_FRACTION = 0.75 / BATCHES_AT_ONCE


def map_rows(
    program: Callable[..., Any],
    make_arguments: Callable[[list[int], tuple[int, ...]], tuple],
    lengths: Sequence[tuple[int, ...]],
    *,
    batch_size: int,
    describe: Callable[[int], tuple[str, str]],
    shapes: "BatchShapes",
    like: Any = None,
) -> list[Any]:
    """Runs a program on all rows, in batches, and returns the results in the order of the rows.

    Rows of similar length share a batch. Two batches run at once, on separate threads. Several devices run
    one batch after the other, because all must run their programs in the same order. If the program of a
    batch needs more than its share of the memory, or if the device runs out of memory, the batch is split
    into halves, quarters and so on, down to single rows. After the device has run out of memory, all later
    batches have at most half as many rows as the batch that failed.

    Args:
      program: A function made by `jax.jit`. The rows are the first axis of every leaf of its result.
      make_arguments: Function that maps (indices of the rows in a batch, widths of its arrays) to the
        arguments of `program`. A row may occur several times. The number of indices is the current maximum
        (`batch_size`, or less after the device ran out of memory) or a power of two, so that few programs
        are compiled. If several devices divide the rows, it is rounded up to a multiple of their number.
      lengths: For each row, the number of tokens in each array of the program.
      batch_size: Maximum number of rows in a batch.
      describe: Function that maps the index of a row that does not fit into the memory to two parts of the
        error message: (subject, advice).
      shapes: The `BatchShapes` of the program.
      like: The variables that the program reads, see `tfm.devices.mesh.place_rows`. None means one device.

    Returns:
      A list with a tree of NumPy arrays for each row.

    Raises:
      UserError: If a single row does not fit into the memory.
    """
    results: list[Any] = [None] * len(lengths)
    batches: deque[tuple[list[int], Future]] = deque()
    run = keep_contexts(_Runner(program, make_arguments, describe, batch_size, like).run)
    pool = ThreadPoolExecutor(1 if find_mesh(like) else BATCHES_AT_ONCE)

    def collect():
        indices, future = batches.popleft()
        for index, result in zip(indices, future.result(), strict=True):
            results[index] = result

    # The longest rows come first, so that a row that does not fit into the memory fails early.
    order = sorted(range(len(lengths)), key=lambda i: -sum(lengths[i]))
    try:
        for start in range(0, len(order), batch_size):
            indices = order[start : start + batch_size]
            longest = map(max, zip(*(lengths[i] for i in indices), strict=True))
            shape = _round_up(len(indices), batch_size), *map(find_width, longest)
            count, *widths = shapes.choose(shape)
            batches.append((indices, pool.submit(run, indices, tuple(widths), count)))
            if len(batches) > BATCHES_AT_ONCE:
                collect()
        while batches:
            collect()
    finally:
        pool.shutdown(cancel_futures=True)
    return results


@contextlib.contextmanager
def few_widths() -> Iterator[None]:
    """Makes `find_width` return powers of two from 32 on, so that few programs serve all lengths."""
    token = _HAS_FEW_WIDTHS.set(True)
    try:
        yield
    finally:
        _HAS_FEW_WIDTHS.reset(token)


class BatchShapes:
    """The shapes of the batches for which a program is compiled.

    A small model computes many batches in the time of a compilation. Therefore a batch uses the program of a
    larger batch until the padding of such batches has cost a part of the time of a compilation. Thus few
    sentences need one program, and many sentences are padded little. The choice depends only on the batches
    so far, so that a repeated process computes equal numbers.
    """

    def __init__(self, work: int):
        """Creates an empty set of shapes. `work` is the number of multiplications for each token."""
        self._work = work
        self._compiled: set[tuple[int, ...]] = set()
        self._padding: Counter[tuple[int, ...]] = Counter()  # number of tokens of padding for each shape

    def choose(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape in which to run the next batch, at least as large as `shape` on each axis.

        Accelerators compute each batch in its own shape, because `find_width` returns few widths there.

        Args:
          shape: (number of rows, width of each array of the program).
        """
        larger = [each for each in self._compiled if _can_contain(each, shape)]
        if larger and is_cpu():
            smallest = min(larger, key=_count_tokens)
            self._padding[shape] += _count_tokens(smallest) - _count_tokens(shape)
            if self._padding[shape] * self._work <= MAX_PADDING_WORK:
                return smallest
        self._compiled.add(shape)
        return shape


@functools.lru_cache(maxsize=256)
def find_shapes(work: int, *arguments: Hashable) -> BatchShapes:
    """Returns the `BatchShapes` of the program with these static arguments.

    Equal arguments return the same object, so that it knows the batches of earlier calls.
    """
    del arguments  # They only identify the program.
    return BatchShapes(work)


def _can_contain(larger: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Returns whether a batch may be padded to a larger shape, or has this shape."""
    return all(size <= other <= MAX_PADDING_RATIO * size for size, other in zip(shape, larger, strict=True))


def _count_tokens(shape: tuple[int, ...]) -> int:
    """Returns the number of tokens in the arrays of a batch with a shape (rows, width, ...)."""
    rows, *widths = shape
    return rows * sum(widths)


def _round_up(count: int, max_count: int) -> int:
    """Returns the number of rows of a batch for `count` rows: a power of two, or the maximum."""
    return min(max_count, 1 << (count - 1).bit_length())


def find_width(length: int) -> int:
    """Returns the smallest width for `length` tokens in a fixed set, so that few programs are compiled.

    On accelerators, where padding is cheap and a compilation may take a minute, the widths are powers of two
    from 32 on, as they are inside `few_widths`. On a CPU, they are those of `bucket_width`.
    """
    width = bucket_width(length)
    if _HAS_FEW_WIDTHS.get() or not is_cpu():
        return max(MIN_ACCELERATOR_WIDTH, 1 << (width - 1).bit_length())
    return width


def pad_ids(rows: Sequence[Sequence[int]], fill: int = PAD_ID, width: int | None = None) -> np.ndarray:
    """Returns lists of ids as an array int32 [B, M], padded at the end with `fill`.

    M is `width`. None means the `find_width` of the longest row.
    """
    width = find_width(max(map(len, rows))) if width is None else width
    array = np.full((len(rows), width), fill, np.int32)
    for row, ids in enumerate(rows):
        array[row, : len(ids)] = ids
    return array


def measure_memory(program: Any, arguments: tuple) -> int:
    """Compiles a program and returns the number of bytes that a call needs in addition to its arguments.

    The arguments are in the memory of the device already. Returns 0 if the platform does not report the
    memory. `jax.jit` caches the compiled program, so a later call does not compile again. The number is
    cached, too, because XLA needs as long to report it as a small model needs for several steps of a search.
    """
    leaves, structure = jax.tree.flatten(jax.tree.map(_as_shape, arguments))
    return _measure_memory(program, structure, tuple(leaves))


@functools.lru_cache(maxsize=256)
def _measure_memory(program: Any, structure: Any, leaves: tuple) -> int:
    """Returns `measure_memory` for arguments that are flattened, with shapes instead of arrays."""
    memory = program.lower(*jax.tree.unflatten(structure, leaves)).compile().memory_analysis()
    return 0 if memory is None else memory.output_size_in_bytes + memory.temp_size_in_bytes


def _as_shape(x: Any) -> Any:
    """Returns the shape and dtype of an array, and the sharding if it is fixed. Keeps other arguments."""
    if not isinstance(x, jax.Array | np.ndarray):
        return x
    sharding = x.sharding if isinstance(x, jax.Array) and x.committed else None
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


class _Runner:
    """Runs the batches of one call of `map_rows`, and records how many rows fit into the memory."""

    def __init__(
        self,
        program: Callable[..., Any],
        make_arguments: Callable[[list[int], tuple[int, ...]], tuple],
        describe: Callable[[int], tuple[str, str]],
        batch_size: int,
        like: Any,
    ):
        self._program, self._make_arguments, self._describe = program, make_arguments, describe
        self._memory, self._max_rows = free_memory(), batch_size
        self._shards = count_row_shards(like)
        self._has_hosts = find_mesh(like) is not None and jax.process_count() > 1
        if self._has_hosts and self._memory:  # all hosts must split batches alike
            mebibytes = multihost_utils.process_allgather(np.int32(self._memory >> 20))
            self._memory = int(mebibytes.min()) << 20
        self._compiling, self._reserving = threading.Lock(), threading.Lock()
        self._places = threading.Semaphore(BATCHES_AT_ONCE)

    def run(self, indices: list[int], widths: tuple[int, ...], count: int) -> list[Any]:
        """Returns the result of each row. Splits the rows if they do not fit into the memory.

        Args:
          indices: The rows.
          widths: Widths of the arrays of the program.
          count: Number of rows of the program, at least the number of `indices`.
        """
        if len(indices) > self._max_rows:
            return self._run_parts(indices, widths, self._max_rows)
        count = min(self._max_rows, count)
        count += -count % self._shards
        # Copies of the last row fill up the batch, because a search for rows of padding might not end early.
        rows = [*indices, *indices[-1:] * (count - len(indices))]
        try:
            arguments = self._make_arguments(rows, widths)
            needed = 0
            if self._memory:
                with self._compiling:  # Otherwise two threads would compile the same program.
                    needed = measure_memory(self._program, arguments)
            share = MAX_MEMORY_FRACTION * (self._memory or math.inf)
            if needed > share and count > self._shards:
                size = count >> math.ceil(math.log2(needed / share))
                # Fewer rows than now, because they may be filled up to as many rows as now.
                return self._run_parts(indices, widths, max(1, min(size, len(indices) - 1)))
            if self._memory and needed > self._memory:
                free = format_bytes(self._memory)
                self._raise_too_large(
                    indices, f"needs about {format_bytes(needed)}, but {free} are available"
                )
            return self._compute(arguments, len(indices), needs_all=needed > share)
        except jax.errors.JaxRuntimeError as error:
            if not is_out_of_memory(error):
                raise
        if count > self._shards and not self._has_hosts:
            self._max_rows = min(self._max_rows, count // 2)
            return self._run_parts(indices, widths, self._max_rows)
        try:  # The row may fit into the memory if no other batch runs at the same time.
            return self._compute(arguments, len(indices), needs_all=True)
        except jax.errors.JaxRuntimeError as error:
            if not is_out_of_memory(error):
                raise
            self._raise_too_large(
                indices, f"does not fit into the memory of the device ({first_line(error)})"
            )

    def _run_parts(self, indices: list[int], widths: tuple[int, ...], size: int) -> list[Any]:
        """Runs the rows in parts of `size` rows and returns the result of each row."""
        parts = (indices[start : start + size] for start in range(0, len(indices), size))
        return [
            result
            for part in parts
            for result in self.run(part, widths, _round_up(len(part), self._max_rows))
        ]

    def _compute(self, arguments: tuple, count: int, needs_all: bool) -> list[Any]:
        """Runs the program and returns the results of the first `count` rows.

        If `needs_all`, no other batch runs at the same time.
        """
        with self._reserve(BATCHES_AT_ONCE if needs_all else 1):
            arrays = fetch(self._program(*arguments))
        return [jax.tree.map(operator.itemgetter(row), arrays) for row in range(count)]

    @contextlib.contextmanager
    def _reserve(self, places: int) -> Iterator[None]:
        """Waits until this many of the `BATCHES_AT_ONCE` places are free, and occupies them in the block."""
        # Without the lock, two threads that need all places might each wait for the places of the other.
        with self._reserving:
            for _ in range(places):
                self._places.acquire()
        try:
            yield
        finally:
            for _ in range(places):
                self._places.release()

    def _raise_too_large(self, indices: list[int], reason: str) -> NoReturn:
        """Raises the UserError for a row that does not fit into the memory."""
        subject, advice = self._describe(indices[0])
        raise UserError(f"{subject} {reason}. {advice}.")
