"""Tests of the batch norm against NumPy. tests/training/test_model_state.py covers training with it."""

import jax
import numpy as np
import pytest

from tests.support.comparison import assert_trees_equal
from tfm.layers.batch_norm import BatchNorm, Rows

MOMENTUM, EPSILON = 0.8, 0.05
X = np.random.default_rng(0).normal(2.0, 3.0, (5, 4, 3)).astype(np.float32)
BEFORE = {"mean": np.float32([1, -2, 3]), "variance": np.float32([4, 0.5, 2])}
PARAMS = {"scale": np.float32([2, 1, 0.5]), "bias": np.float32([0, 1, -1])}


def apply(x, rows=None, *, train):
    """Returns the outputs and the moving averages."""
    norm, variables = BatchNorm(MOMENTUM, EPSILON), {"params": PARAMS, "batch_stats": BEFORE}
    outputs, changed = norm.apply(variables, x, rows, train=train, mutable=["batch_stats"])
    return outputs, changed["batch_stats"]


def normalize(x, mean, variance):
    """Returns the normalized features after the scale and the bias."""
    return (x - mean) / np.sqrt(variance + EPSILON) * PARAMS["scale"] + PARAMS["bias"]


@pytest.mark.parametrize("weights", [None, np.float32([1, 0, 1, 1, 0])])
def test_training_uses_the_statistics_of_rows_that_are_not_padding(weights):
    counted = X if weights is None else X[weights > 0]
    mean, variance = counted.mean((0, 1)), counted.var((0, 1))
    outputs, after = apply(X, None if weights is None else Rows(weights), train=True)
    np.testing.assert_allclose(outputs, normalize(X, mean, variance), atol=1e-5)
    for name, new in (("mean", mean), ("variance", variance)):
        expected = MOMENTUM * BEFORE[name] + (1 - MOMENTUM) * new
        np.testing.assert_allclose(after[name], expected, rtol=1e-5)


def test_evaluation_uses_the_moving_averages_and_does_not_change_them():
    outputs, after = apply(X, train=False)
    np.testing.assert_allclose(outputs, normalize(X, **BEFORE), atol=1e-5)
    assert_trees_equal(after, BEFORE)


@pytest.mark.long
def test_initial_moving_averages_do_not_depend_on_the_batch():
    variables = BatchNorm().init(jax.random.key(0), X, train=True)
    expected = {"mean": np.zeros(3), "variance": np.ones(3)}
    assert_trees_equal(variables["batch_stats"], expected)
