"""Gradients compared with central differences of an independent loss in float64."""

import zlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tfm.io.tree_paths import join_path

STEP = 1e-5  # the error of a central difference falls with its square


def assert_gradient_equals_differences(
    gradient: Any, compute_loss: Callable[[Any], float], params: Any, **tolerance: float
) -> None:
    """Asserts that the derivative of each parameter array in a random direction is that of a loss.

    Args:
      gradient: tree of the gradient that is tested.
      compute_loss: returns the loss in float64 for a tree like `params`.
      params: the parameters at which the gradient was computed.
      tolerance: arguments of `np.testing.assert_allclose`. The default of `rtol` is 1e-4, of `atol` 1e-6.
    """
    wide = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    leaves, structure = jax.tree.flatten(wide)
    assert leaves, "the tree has no leaves"
    expected, found, names = [], [], []
    for index, (path, part) in enumerate(jax.tree_util.tree_leaves_with_path(gradient)):
        name = join_path(path)
        direction = np.random.default_rng(zlib.crc32(name.encode())).normal(size=leaves[index].shape)
        losses = []
        for step in (STEP, -STEP):
            moved = [*leaves[:index], leaves[index] + step * direction, *leaves[index + 1 :]]
            losses.append(compute_loss(jax.tree.unflatten(structure, moved)))
        names.append(name)
        expected.append((losses[0] - losses[1]) / (2 * STEP))
        found.append(float((np.asarray(part, np.float64) * direction).sum()))
    tolerance = {"rtol": 1e-4, "atol": 1e-6} | tolerance
    np.testing.assert_allclose(found, expected, err_msg=", ".join(names), **tolerance)
