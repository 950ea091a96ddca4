"""Figures of what each hop of a memory network attends to."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from tfm.visualize.figures import TEXT_SIZE, save

ROW, COLUMN, LABELS = 0.19, 0.5, 2.1  # inches: height of a sentence, width of a hop and of the sentences
COLUMNS = 3  # stories next to each other


class Hops(NamedTuple):
    """A story and the weights of its sentences.

    Attributes:
      title: the question and the answer of the model.
      sentences: the S sentences.
      weights: [hops, S], from 0 to 1.
    """

    title: str
    sentences: Sequence[str]
    weights: np.ndarray


def draw_hops(stories: Sequence[Hops], path: str) -> None:
    """Draws the weights of each hop next to the sentences of each story.

    Args:
      stories: at least one story.
      path: path of the file, with an ending from `tfm.visualize.figures.FORMATS`.
    """
    columns = min(COLUMNS, len(stories))
    rows = -(-len(stories) // columns)
    hops = len(stories[0].weights)
    most = max(len(story.sentences) for story in stories)
    figure = Figure(
        figsize=(columns * (LABELS + hops * COLUMN), rows * (ROW * most + 0.6)), layout="constrained"
    )
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[len(stories) :]:
        axes.set_axis_off()
    for axes, story in zip(grid, stories, strict=False):
        axes.imshow(story.weights.T, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set_ylim(most - 0.5, -0.5)
        axes.set_xticks(range(hops), [f"hop {hop + 1}" for hop in range(hops)], fontsize=TEXT_SIZE - 3)
        axes.set_yticks(range(len(story.sentences)), story.sentences, fontsize=TEXT_SIZE - 3)
        axes.set_title(story.title, fontsize=TEXT_SIZE - 2, parse_math=False)
    save(figure, path)
