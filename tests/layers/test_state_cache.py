"""Tests of the cache of models whose state is small."""

import numpy as np

from tfm.layers.state_cache import StateCache


def test_reordering_moves_states_and_coverage_but_not_what_the_hypotheses_share():
    rng = np.random.default_rng(0)
    carry = [rng.normal(size=(2, 3, 4)), {"cell": rng.normal(size=(2, 3, 5, 6))}]
    coverage = rng.normal(size=(2, 3, 7))
    cache = StateCache(
        encoded=rng.normal(size=(2, 7, 4)),
        source_mask=np.ones((2, 1, 1, 7), bool),
        carry=carry,
        coverage=coverage,
    )
    parents = np.array([[2, 0, 0], [1, 1, 2]])
    found = cache.reorder(parents)
    rows = np.arange(2)[:, None]
    np.testing.assert_allclose(found.carry[0], carry[0][rows, parents], rtol=1e-6)
    np.testing.assert_allclose(found.carry[1]["cell"], carry[1]["cell"][rows, parents], rtol=1e-6)
    np.testing.assert_allclose(found.coverage, coverage[rows, parents], rtol=1e-6)
    assert found.encoded is cache.encoded
    assert found.source_mask is cache.source_mask


def test_coverage_is_the_sum_of_the_attention_weights_of_all_steps():
    rng = np.random.default_rng(0)
    weights = rng.uniform(size=(2, 2, 3, 7)).astype(np.float32)
    cache = StateCache(None, None, None, np.zeros((2, 3, 7), np.float32))
    for step in weights:
        cache = cache.add_coverage(step)
    np.testing.assert_allclose(cache.coverage, weights.sum(0), rtol=1e-6)
