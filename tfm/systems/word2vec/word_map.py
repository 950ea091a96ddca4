"""A map of words: word vectors in two dimensions, coloured by the class of the word."""

import collections
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.textpath import TextPath

from tfm.visualize.figures import SHARP_DPI, save
from tfm.visualize.plots import COLOURS, SMALL

NAMED_WORDS = 12  # words of each class whose names are drawn
CLASS_NAMES = {
    "CD": "numbers",
    "JJ": "adjectives",
    "NN": "nouns",
    "NNS": "nouns, plural",
    "VB": "verbs, infinitive",
    "VBD": "verbs, past",
    "VBZ": "verbs, present",
}
SIDE, HEADER, MARGIN = 4.6, 0.4, 0.25  # inches: the map, the legend above it, the space around its points
NAME_SHIFT, NAME_GAP = 2.5, 1.5  # points: from a word to the lower edge of its name, and around a name
DARKNESS = 0.65  # factor of the colours of names, which are thin and have to be darker than points


def project(vectors: np.ndarray) -> np.ndarray:
    """Returns the two principal components [N, 2] of vectors [N, D]."""
    centered = vectors - vectors.mean(0)
    _, _, directions = np.linalg.svd(centered, full_matrices=False)
    return centered @ directions[:2].T


def choose_names(boxes: np.ndarray, classes: Sequence[str]) -> list[int]:
    """Returns the indices of the names to draw, at most `NAMED_WORDS` of each class. No two of them overlap.

    Args:
      boxes: [N, 4], the left, lower, right and upper edge of each name. Earlier names have precedence.
      classes: class of each name.
    """
    chosen: list[int] = []
    counts: collections.Counter[str] = collections.Counter()
    for index, (box, name) in enumerate(zip(boxes, classes, strict=True)):
        others = boxes[chosen]
        overlaps = (box[:2] < others[:, 2:]).all(1) & (others[:, :2] < box[2:]).all(1)
        if counts[name] < NAMED_WORDS and not overlaps.any():
            chosen.append(index)
            counts[name] += 1
    return chosen


def draw_word_map(points: np.ndarray, words: Sequence[str], classes: Sequence[str], path: str) -> None:
    """Draws a point for each word, and the names of the first words of each class that have room.

    Args:
      points: [N, 2].
      words: the N words, the most frequent first.
      classes: class of each word.
      path: path of the file, with an ending from `tfm.visualize.figures.FORMATS`.
    """
    figure = Figure(figsize=(SIDE, SIDE + HEADER))
    axes = figure.add_axes((0.01, 0.01, 0.98, SIDE / (SIDE + HEADER) - 0.01))
    low, high = points.min(0), points.max(0)
    border = (high - low).clip(min=1e-9) * MARGIN / (SIDE - 2 * MARGIN)
    limits = low - border, high + border
    axes.set(xlim=(limits[0][0], limits[1][0]), ylim=(limits[0][1], limits[1][1]), xticks=[], yticks=[])
    colours = dict(zip(sorted(set(classes)), itertools.cycle(COLOURS), strict=False))
    for name, colour in colours.items():
        members = [number for number, other in enumerate(classes) if other == name]
        axes.scatter(
            points[members, 0], points[members, 1], s=8, color=colour, alpha=0.6, linewidths=0, label=name
        )
    places = 72 * SIDE * (points - limits[0]) / (limits[1] - limits[0])
    for number in choose_names(measure_names(places, words), classes):
        axes.annotate(
            words[number],
            points[number],
            xytext=(0, NAME_SHIFT),
            textcoords="offset points",
            ha="center",
            fontsize=SMALL,
            color=DARKNESS * np.array(to_rgb(colours[classes[number]])),
            path_effects=[withStroke(linewidth=2, foreground="white")],
            parse_math=False,
        )
    texts = [CLASS_NAMES.get(name, name) for name in colours]
    place: dict[str, Any] = {"loc": "upper center", "ncols": 4, "columnspacing": 1, "handletextpad": 0}
    legend = figure.legend(axes.collections, texts, **place, fontsize=SMALL, frameon=False, markerscale=2)
    for text in legend.get_texts():
        text.set_parse_math(False)
    save(figure, path, dpi=SHARP_DPI)


def measure_names(places: np.ndarray, words: Sequence[str]) -> np.ndarray:
    """Returns the boxes [N, 4] of the names of words, for `choose_names`.

    Args:
      places: [N, 2], where the words are, in typographic points from the lower left corner of the map.
      words: the N words.
    """
    boxes = []
    # TextPath reads a formula between dollar signs that are not escaped.
    for (x, y), word in zip(places, words, strict=True):
        width = TextPath((0, 0), word.replace("$", r"\$"), size=SMALL).get_extents().width + 2 * NAME_GAP
        boxes.append((x - width / 2, y, x + width / 2, y + SMALL + 2 * NAME_GAP))
    return np.array(boxes).reshape(-1, 4)
