"""Attention of one word, drawn as lines whose width is the attention weight."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfm.interpret.words import SPECIAL_LABELS, align_tokens
from tfm.visualize.figures import DPI, Axis, Panels, save

PANEL_WIDTH, ROW, HEADER = 3.18, 0.26, 0.45  # inches
LEFT, RIGHT = 0.33, 0.53  # ends of the lines, as shares of the width of a panel
GAP = 0.03  # between a line and a word, as a share of the width of a panel
MAX_LINE_WIDTH = 8.0  # points, of a weight of 1
MIN_SHOWN_WEIGHT = 0.05  # weights from here on are printed next to their word
PUNCTUATION = re.compile(r"^\W+|\W+$")  # around a word
WORD_COLOUR, OTHER_COLOUR = "#0072B2", "#555555"


def find_word(queries: Axis, words: str) -> int | None:
    """Returns the index of the last query that is one of some words, or None. Upper and lower case are equal.

    Args:
      queries: the queries. Punctuation around them does not count, except in special tokens such as "</s>".
      words: a word, or several with commas between them.
    """
    wanted = {word.strip() for word in words.casefold().split(",")} - {""}
    special = SPECIAL_LABELS.values()
    labels = [label if label in special else PUNCTUATION.sub("", label) for label in queries.labels]
    matches = [index for index, label in enumerate(labels) if label.casefold() in wanted]
    return matches[-1] if matches else None


def select_differing_head(sentences: Sequence[Panels], word: str) -> list[Panels]:
    """Returns the panels of the head whose attention of a word differs most between the sentences.

    The difference is the sum of the absolute differences of the weights between the first sentence and each
    other sentence, over the keys that correspond.

    Args:
      sentences: `Panels` of the same layers and heads for each sentence, at least two. Each has the word as a
        query.
      word: the query, see `find_word`.
    """
    first, *others = sentences
    moved = sum(_differences(first, other, word) for other in others)
    layer, head = np.unravel_index(np.argmax(moved), np.shape(moved))
    return [
        panels._replace(
            weights=panels.weights[layer : layer + 1, head : head + 1], titles=[[panels.titles[layer][head]]]
        )
        for panels in sentences
    ]


def _differences(first: Panels, second: Panels, word: str) -> np.ndarray:
    """Returns how much the attention of a word differs between two sentences, for each head: [N, H]."""
    pairs = align_tokens(first.keys.labels, second.keys.labels)
    columns = np.array(pairs, int).reshape(-1, 2).T
    one, other = (
        panels.weights[:, :, find_word(panels.queries, word)][..., keys]
        for panels, keys in zip((first, second), columns, strict=True)
    )
    return np.abs(one - other).sum(-1)


def draw_lines(sentences: Sequence[Panels], word: str, title: str, path: str) -> None:
    """Draws what one word of each sentence attends to, with the sentences next to each other.

    Each sentence appears twice, as queries on the left and as keys on the right. A line leads from the word
    to each key. The width of the line is the attention weight.

    Args:
      sentences: for each sentence, `Panels` of a single layer and head that have the word as a query.
      word: the query whose attention is drawn, see `find_word`.
      title: title of the figure.
      path: path of the file, with an ending from `tfm.visualize.figures.FORMATS`.

    Raises:
      UserError: if the path has another ending.
      ValueError: if a sentence does not contain the word.
    """
    rows = max(len(axis.labels) for panels in sentences for axis in (panels.queries, panels.keys))
    figure = Figure(figsize=(PANEL_WIDTH * len(sentences), HEADER + ROW * rows))
    height = ROW * rows / (HEADER + ROW * rows)
    figure.text(0.02, 1 - 0.13 / (HEADER + ROW * rows), title, fontsize=11, va="top", parse_math=False)
    for number, panels in enumerate(sentences):
        index = find_word(panels.queries, word)
        if index is None:
            raise ValueError(f"Expected {word!r} among the queries {panels.queries.labels}.")
        axes = figure.add_axes((number / len(sentences), 0, 1 / len(sentences), height))
        axes.set(xlim=(0, 1), ylim=(rows - 0.5, -0.5))
        axes.set_axis_off()
        _draw_sentence(axes, panels, index)
    save(figure, path, dpi=2 * DPI)


def _draw_sentence(axes: Axes, panels: Panels, index: int) -> None:
    """Draws both columns of words, and the lines of the query with this index."""
    weights: np.ndarray = panels.weights[0, 0, index]
    for row, label in enumerate(panels.queries.labels):
        _write(axes, LEFT - GAP, row, label, "right", emphasized=row == index)
    for row, (label, weight) in enumerate(zip(panels.keys.labels, weights, strict=True)):
        shown = weight >= MIN_SHOWN_WEIGHT
        width = MAX_LINE_WIDTH * float(weight)
        axes.plot((LEFT, RIGHT), (index, row), color=WORD_COLOUR, linewidth=width, alpha=0.75)
        text = f"{label}   {weight:.0%}" if shown else label
        _write(axes, RIGHT + GAP, row, text, "left", emphasized=shown)


def _write(axes: Axes, x: float, y: float, text: str, align: str, emphasized: bool) -> None:
    """Writes a word of a column, in bold if it is emphasized."""
    weight, colour = ("bold", "black") if emphasized else ("normal", OTHER_COLOUR)
    style: dict[str, Any] = {"fontsize": 10.5, "weight": weight, "color": colour, "parse_math": False}
    axes.text(x, y, text, ha=align, va="center", **style)
