"""The Frechet distance of generated images from real images (Heusel et al. 2017), in NumPy."""

import numpy as np


def frechet_distance(features: np.ndarray, references: np.ndarray) -> float:
    """Returns the squared Frechet distance of two Gaussians with the means and covariances of two sets.

    This is |m - n|^2 + tr(S + T - 2 (S^1/2 T S^1/2)^1/2).

    Args:
      features, references: float [N, F] and [R, F], with at least two rows each.
    """
    means = [np.mean(x, axis=0, dtype=np.float64) for x in (features, references)]
    first, second = (np.atleast_2d(np.cov(x, rowvar=False, dtype=np.float64)) for x in (features, references))
    values, vectors = np.linalg.eigh(first)
    root = (vectors * np.sqrt(values.clip(0))) @ vectors.T
    overlap = np.sqrt(np.linalg.eigvalsh(root @ second @ root).clip(0)).sum()
    squared_distance = ((means[0] - means[1]) ** 2).sum()
    return float(squared_distance + np.trace(first) + np.trace(second) - 2 * overlap)
