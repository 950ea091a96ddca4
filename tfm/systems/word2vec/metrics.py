"""Nearest neighbours and analogies of word vectors by their cosines (Mikolov et al. 2013)."""

from collections.abc import Sequence

import numpy as np


def normalize(vectors: np.ndarray) -> np.ndarray:
    """Returns vectors [V, D] of length 1. Zeros remain zeros."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def find_neighbours(vectors: np.ndarray, words: Sequence[int], count: int) -> np.ndarray:
    """Returns the other words with the largest cosines, int [N, count].

    Args:
      vectors: [V, D].
      words: numbers of the N words.
      count: number of neighbours of each word.
    """
    unit = normalize(vectors)
    cosines = unit[list(words)] @ unit.T
    cosines[np.arange(len(words)), list(words)] = -np.inf
    return np.argsort(-cosines, axis=-1, kind="stable")[:, :count]


def solve_analogies(vectors: np.ndarray, questions: np.ndarray) -> np.ndarray:
    """Returns the word whose vector is closest to second - first + third of each question, int [N].

    Args:
      vectors: [V, D].
      questions: int [N, 3]. None of the three words is an answer.
    """
    unit = normalize(vectors)
    first, second, third = unit[questions].transpose(1, 0, 2)
    cosines = normalize(second - first + third) @ unit.T
    np.put_along_axis(cosines, questions, -np.inf, axis=-1)
    return cosines.argmax(-1)
