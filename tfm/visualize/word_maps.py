"""A map of words: word vectors in two dimensions, coloured by the class of the word."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from tfm.visualize.figures import TEXT_SIZE, save
from tfm.visualize.plots import COLOURS, PAGE

NAMED_WORDS = 12  # words of each class whose names are drawn


def project(vectors: np.ndarray) -> np.ndarray:
    """Returns the two principal components [N, 2] of vectors [N, D]."""
    centered = vectors - vectors.mean(0)
    _, _, directions = np.linalg.svd(centered, full_matrices=False)
    return centered @ directions[:2].T


def draw_word_map(points: np.ndarray, words: Sequence[str], classes: Sequence[str], path: str) -> None:
    """Draws a point for each word, and the names of the first words of each class.

    Args:
      points: [N, 2].
      words: the N words, the most frequent first.
      classes: class of each word.
      path: path of the file, with an ending from `tfm.visualize.figures.FORMATS`.
    """
    figure = Figure(figsize=(PAGE, PAGE * 0.8), layout="constrained")
    axes = figure.subplots()
    for index, name in enumerate(sorted(set(classes))):
        colour = COLOURS[index % len(COLOURS)]
        members = [number for number, other in enumerate(classes) if other == name]
        axes.scatter(points[members, 0], points[members, 1], s=8, color=colour, label=name)
        for number in members[:NAMED_WORDS]:
            axes.annotate(words[number], points[number], fontsize=TEXT_SIZE - 3, color=colour)
    axes.set(xticks=[], yticks=[])
    axes.legend(fontsize=TEXT_SIZE - 2)
    save(figure, path)
