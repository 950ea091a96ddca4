"""Losses in NumPy float64, and gradients by their central differences."""

import jax
import numpy as np


def directional_derivatives(function, params, *, directions=1, step=1e-5, seed=0):
    """Yields (path, direction, derivative of a function along it) for random directions of each leaf.

    Args:
      function: (tree of float64 arrays) -> number, in NumPy.
      params: a tree of arrays.
      directions: number of directions of each leaf.
      step: length of a step in each direction.
      seed: seed of the directions.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    arrays = [np.asarray(leaf, np.float64) for _, leaf in leaves]
    rng = np.random.default_rng(seed)
    for index, (path, _) in enumerate(leaves):
        for _ in range(directions):
            direction = rng.normal(size=arrays[index].shape)

            def moved(distance, index=index, direction=direction):
                others = [*arrays[:index], arrays[index] + distance * direction, *arrays[index + 1 :]]
                return float(function(structure.unflatten(others)))

            derivative = (moved(step) - moved(-step)) / (2 * step)
            yield jax.tree_util.keystr(path), direction, derivative


def assert_gradient_close(gradient, function, params, *, rtol=1e-3, atol=1e-5, **options):
    """Asserts that a tree of gradients equals the central differences of a function in NumPy float64."""
    actual = {jax.tree_util.keystr(path): x for path, x in jax.tree_util.tree_leaves_with_path(gradient)}
    assert actual, "the gradient has no leaves"
    for path, direction, expected in directional_derivatives(function, params, **options):
        found = float((np.asarray(actual[path], np.float64) * direction).sum())
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol, err_msg=path)


def cross_entropy(logits, labels):
    """Returns the sum of -log softmax(logits)[label] for logits [..., V] and labels int [...], in NumPy."""
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return -np.take_along_axis(log_probabilities, np.asarray(labels)[..., None], -1).sum()
