"""Reading many pictures in threads, with their problems and the progress."""

import concurrent.futures
import os
import time
from collections.abc import Callable
from typing import TypeVar

from tfm.data.data_errors import collect

CHUNK_PICTURES = 4096  # that wait for a thread at a time. This limits the memory.
PROGRESS_SECONDS = 10  # between two lines of progress
T = TypeVar("T")


def read_in_threads(
    count: int, read: Callable[[int], T], show: Callable[[str], None]
) -> tuple[list[T | None], list[str]]:
    """Reads all pictures of a split, several at a time.

    Args:
      count: number of pictures.
      read: returns what is wanted of a picture by its index.
      show: is called with a line of progress at most every ten seconds.

    Returns:
      The result for each picture, None for a picture that cannot be read, and a message for each of these.
    """

    def try_to_read(index: int) -> tuple[T | None, list[str]]:
        problems: list[str] = []
        result = None
        with collect(problems):
            result = read(index)
        return result, problems

    results: list[T | None] = []
    all_problems: list[str] = []
    began = shown = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
        for start in range(0, count, CHUNK_PICTURES):
            indices = range(start, min(start + CHUNK_PICTURES, count))
            for result, problems in threads.map(try_to_read, indices):
                results.append(result)
                all_problems += problems
            now = time.monotonic()
            if now - shown > PROGRESS_SECONDS:
                shown = now
                rate = f"{len(results) / (now - began):,.0f}"
                show(f"Read {len(results):,} of {count:,} pictures ({rate} a second)")
    return results, all_problems
