"""Derivatives of a reference in NumPy, to compare gradients with."""

import jax
import numpy as np

STEP = 1e-5


def compare_gradients(gradient, reference, params, **tolerance):
    """Asserts that the gradient of each parameter equals the central differences of a reference.

    A random direction is enough for each parameter, because only an equal gradient has an equal product with
    every direction.

    Args:
      gradient: tree of arrays.
      reference: function of parameters in float64 that returns a loss.
      params: tree of the parameters where `gradient` was computed.
      tolerance: keywords of `numpy.testing.assert_allclose`.
    """
    leaves, structure = jax.tree.flatten(jax.tree.map(lambda x: np.asarray(x, np.float64), params))
    gradients = jax.tree.leaves(gradient)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    rng = np.random.default_rng(0)
    assert len(gradients) == len(leaves) > 0
    for index, (leaf, path) in enumerate(zip(leaves, paths, strict=True)):
        direction = rng.normal(size=leaf.shape)
        losses = []
        for step in (STEP, -STEP):
            moved = [*leaves[:index], leaf + step * direction, *leaves[index + 1 :]]
            losses.append(reference(jax.tree.unflatten(structure, moved)))
        expected = (losses[0] - losses[1]) / (2 * STEP)
        actual = (np.asarray(gradients[index], np.float64) * direction).sum()
        np.testing.assert_allclose(actual, expected, err_msg=path, **tolerance)


def cross_entropy(logits, labels):
    """Returns the sum of -log softmax(logits)[label] for logits [..., V] and labels int [...], in NumPy."""
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return -np.take_along_axis(log_probabilities, np.asarray(labels)[..., None], -1).sum()
