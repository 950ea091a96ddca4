"""Tests of the key-value cache of incremental decoding."""

import numpy as np
import pytest

from tests.support.layer_cases import cache_of


@pytest.mark.long
def test_positions_beyond_the_cache_are_errors():
    cache_of(3).begin_step(2)
    for position in (3, np.int64(7)):
        with pytest.raises(ValueError, match=rf"below the cache's max_length 3, got {position}"):
            cache_of(3).begin_step(position)


@pytest.mark.long
def test_cache_sums_the_coverage_of_each_hypothesis():
    weights = np.random.default_rng(0).random((3, 2, 3, 5)).astype(np.float32)
    cache = cache_of(4).add_coverage(weights[0]).add_coverage(weights[1])
    parents = np.array([[2, 0, 0], [1, 1, 2]])
    cache = cache.reorder(parents).add_coverage(weights[2])
    expected = np.take_along_axis(weights[0] + weights[1], parents[..., None], axis=1) + weights[2]
    np.testing.assert_allclose(cache.coverage, expected, rtol=1e-6)
