"""Tests of functions that are applied to batches of rows."""

import numpy as np
import pytest

from tfm.training.map_batches import map_rows


def square(_, rows):
    return {"square": rows["x"] ** 2}


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_results_of_batches_are_joined_without_padding(size):
    found = map_rows(square, {}, {"x": np.arange(3.0)}, size)
    np.testing.assert_array_equal(found["square"], [0, 1, 4])


def test_arrays_without_rows_are_an_error():
    with pytest.raises(ValueError, match="at least one row"):
        map_rows(square, {}, {"x": np.zeros(0)}, 2)
