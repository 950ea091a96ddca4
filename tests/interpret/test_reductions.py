"""Tests of reductions of attention, against examples by hand and loops."""

import numpy as np

from tests.support.observations import random_weights
from tfm.interpret import reductions


def test_words_sum_keys_and_average_queries():
    weights = np.array([[0.1, 0.2, 0.7], [0.3, 0.3, 0.4]])
    merged = reductions.merge_words(weights, [0, 0], [0, 0, 1])
    np.testing.assert_allclose(merged, [[(0.3 + 0.6) / 2, (0.7 + 0.4) / 2]])


def test_rows_of_merged_words_sum_to_one():
    weights = random_weights(0, (2, 3, 5, 6))
    merged = reductions.merge_words(weights, [0, 1, 1, 1, 2], [0, 0, 1, 2, 2, 2])
    assert merged.shape == (2, 3, 3, 3)
    np.testing.assert_allclose(merged.sum(-1), 1, rtol=1e-5)


def test_rollout_equals_an_example_by_hand():
    """Position 1 attends to both positions in the first layer and to position 0 in the second layer."""
    first, second = [[1, 0], [0.5, 0.5]], [[1, 0], [1, 0]]
    rollout = reductions.attention_rollout(np.array([[first], [second]]))
    np.testing.assert_allclose(rollout[0], [[1, 0], [0.25, 0.75]])
    np.testing.assert_allclose(rollout[1], [[1, 0], [0.5 * 1 + 0.5 * 0.25, 0.5 * 0.75]])


def test_rollout_sums_over_all_paths():
    """For three layers, entry (i, j) is a sum over the positions k and n in the layers between."""
    weights = random_weights(1, (3, 2, 4, 4))
    steps = [(layer.mean(0) + np.eye(4)) / 2 for layer in weights.astype(np.float64)]
    expected = [
        [
            sum(steps[2][i, k] * steps[1][k, n] * steps[0][n, j] for k in range(4) for n in range(4))
            for j in range(4)
        ]
        for i in range(4)
    ]
    found = reductions.attention_rollout(weights)
    np.testing.assert_allclose(found[2], expected, rtol=1e-5)
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-5)


def test_cross_rollout_ends_at_the_encoder_input():
    cross, encoder = random_weights(3, (2, 2, 3, 4)), random_weights(4, (3, 2, 4, 4))
    through = reductions.attention_rollout(encoder)[-1]
    found = reductions.cross_rollout(cross, encoder)
    expected = sum(cross[1].mean(0)[2, m] * through[m, 1] for m in range(4))
    np.testing.assert_allclose(found[1, 2, 1], expected, rtol=1e-5)
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-5)


def test_value_norms_are_of_the_weighted_value_vectors():
    rng = np.random.default_rng(5)
    weights = random_weights(5, (2, 3, 4, 5))
    values, kernels = rng.normal(size=(2, 5, 3, 6)), rng.normal(size=(2, 3, 6, 7))
    norms, joint = reductions.value_norms(weights, values, kernels)
    for layer, query, key in ((0, 0, 0), (1, 3, 4), (1, 0, 2)):
        added = [weights[layer, h, query, key] * values[layer, key, h] @ kernels[layer, h] for h in range(3)]
        np.testing.assert_allclose(norms[layer, :, query, key], [np.linalg.norm(v) for v in added], rtol=1e-5)
        np.testing.assert_allclose(joint[layer, query, key], np.linalg.norm(sum(added)), rtol=1e-5)
