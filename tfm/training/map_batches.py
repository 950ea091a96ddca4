"""Functions of variables and rows, applied to batches of one shape on the devices that hold the variables."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from tfm.devices.mesh import fetch, pad_rows, place_rows
from tfm.training.task import Batch


def map_batches(
    function: Callable[[Any, Any], Any], variables: Any, batches: Iterable[Batch]
) -> Iterator[tuple[dict[str, np.ndarray], Any]]:
    """Applies a function to batches whose rows with weight 0 are padding at the end.

    Args:
      function: maps (variables, placed batch) to a tree of arrays [B, ...]. It is usually jitted.
      variables: variables of a model, or a tuple of the variables of several models.
      batches: host batches with "weights".

    Yields:
      (batch, result of the function), both as NumPy arrays without padding.
    """
    for batch in batches:
        count = int(batch["weights"].sum())
        result = fetch(function(variables, place_rows(dict(batch), like=variables)))
        yield {name: x[:count] for name, x in batch.items()}, jax.tree.map(lambda x, n=count: x[:n], result)


def map_rows(
    function: Callable[[Any, Any], Any], variables: Any, arrays: Mapping[str, np.ndarray], size: int
) -> Any:
    """Applies a function to arrays [N, ...] in batches of `size` rows, and joins the results.

    For function and variables, see `map_batches`. Returns a tree of NumPy arrays [N, ...].

    Raises:
      ValueError: if N is 0, because no result shows the shapes of the tree.
    """
    if not len(next(iter(arrays.values()))):
        raise ValueError("Expected at least one row, got none.")
    results = [result for _, result in map_batches(function, variables, _split(arrays, size))]
    return jax.tree.map(lambda *parts: np.concatenate(parts), *results)


def _split(arrays: Mapping[str, np.ndarray], size: int) -> Iterator[Batch]:
    """Yields batches of `size` rows of arrays [N, ...]. Rows of zeros with weight 0 fill the last batch."""
    rows = len(next(iter(arrays.values())))
    weighted = {**arrays, "weights": np.ones(rows, np.float32)}
    for start in range(0, rows, size):
        yield {name: pad_rows(x[start : start + size], size) for name, x in weighted.items()}
