"""A map of words: word vectors in two dimensions, coloured by the class of the word."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from tfm.visualize.figures import TEXT_SIZE, save
from tfm.visualize.plots import COLOURS, PAGE

NAMED_WORDS = 12  # words of each class whose names are drawn
NAME_SIZE = np.array([0.11, 0.026])  # width and height of a name, as shares of the map


def project(vectors: np.ndarray) -> np.ndarray:
    """Returns the two principal components [N, 2] of vectors [N, D]."""
    centered = vectors - vectors.mean(0)
    _, _, directions = np.linalg.svd(centered, full_matrices=False)
    return centered @ directions[:2].T


def find_free_places(points: np.ndarray) -> list[int]:
    """Returns the indices of points [N, 2] whose names overlap no name of an earlier returned point."""
    places = (points - points.min(0)) / np.ptp(points, axis=0).clip(min=1e-9)
    free: list[int] = []
    for index, place in enumerate(places):
        if (np.abs(places[free] - place) > NAME_SIZE).any(-1).all():
            free.append(index)
    return free


def draw_word_map(points: np.ndarray, words: Sequence[str], classes: Sequence[str], path: str) -> None:
    """Draws a point for each word, and the names of the first words of each class that have room.

    Args:
      points: [N, 2].
      words: the N words, the most frequent first.
      classes: class of each word.
      path: path of the file, with an ending from `tfm.visualize.figures.FORMATS`.
    """
    figure = Figure(figsize=(PAGE, PAGE * 0.8), layout="constrained")
    axes = figure.subplots()
    free = set(find_free_places(points))
    for index, name in enumerate(sorted(set(classes))):
        colour = COLOURS[index % len(COLOURS)]
        members = [number for number, other in enumerate(classes) if other == name]
        axes.scatter(points[members, 0], points[members, 1], s=8, color=colour, label=name)
        for number in [number for number in members if number in free][:NAMED_WORDS]:
            axes.annotate(words[number], points[number], fontsize=TEXT_SIZE - 3, color=colour)
    axes.set(xticks=[], yticks=[])
    axes.legend(fontsize=TEXT_SIZE - 2)
    save(figure, path)
