"""An exact comparison of trees of arrays."""

import jax
import numpy as np


def assert_trees_equal(found, expected):
    """Asserts that two trees have the same structure and exactly equal leaves. An empty tree fails."""
    assert jax.tree.leaves(found), "the tree has no leaves"
    jax.tree.map(np.testing.assert_array_equal, found, expected)
