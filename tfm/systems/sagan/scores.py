"""The scores of generated images: whether they show the requested classes, and the Frechet distance."""

import math

import numpy as np

from tfm.evaluation.score import Score


def frechet_distance(features: np.ndarray, references: np.ndarray) -> float:
    """Returns the squared Frechet distance of two Gaussians with the means and covariances of two sets.

    This is |m - n|^2 + tr(S + T - 2 (S^1/2 T S^1/2)^1/2).

    Args:
      features, references: float [N, F] and [R, F].

    Returns:
      The distance, or NaN if a set has less than two rows or contains a NaN.
    """
    if min(len(features), len(references)) < 2:
        return math.nan
    means = [np.mean(x, axis=0, dtype=np.float64) for x in (features, references)]
    first, second = (np.atleast_2d(np.cov(x, rowvar=False, dtype=np.float64)) for x in (features, references))
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return math.nan  # eigh would raise an error
    values, vectors = np.linalg.eigh(first)
    root = (vectors * np.sqrt(values.clip(0))) @ vectors.T
    overlap = np.sqrt(np.linalg.eigvalsh(root @ second @ root).clip(0)).sum()
    squared_distance = ((means[0] - means[1]) ** 2).sum()
    return float(squared_distance + np.trace(first) + np.trace(second) - 2 * overlap)


# Scores compare the images of a split with as many generated images, which have the same labels.
ACCURACY = "accuracy of requested classes"
DISTANCE = "Frechet distance of features"


def compute_scores(
    labels: np.ndarray, judged: np.ndarray, features: np.ndarray, references: np.ndarray
) -> list[Score]:
    """Returns the accuracy of generated images in per cent, and their Frechet distance to real images.

    Args:
      labels: the requested classes, int [N].
      judged: the classes that the classifier assigns to the generated images, int [N].
      features: the classifier's features of the generated images, float [N, F].
      references: its features of real images of the same classes, float [N, F].
    """
    signature = f"{len(labels):,} generated images"
    accuracy = 100 * float((judged == labels).mean())
    distance = frechet_distance(features, references)
    return [
        Score(ACCURACY, accuracy, f"per cent of {signature}"),
        Score(DISTANCE, distance, f"{signature} and as many real images"),
    ]
