"""Figures of what each hop of a memory network attends to."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from tfm.visualize.figures import SHARP_DPI, save
from tfm.visualize.plots import COLUMN, SMALL, TEXT

ROW, TITLE, BAR = 0.16, 0.55, 0.4  # inches: heights of a sentence, of a title and of the bar of the colours


class Hops(NamedTuple):
    """A story and the weights of its sentences.

    Attributes:
      title: the question and the answer that the model predicts.
      sentences: the S sentences.
      weights: [hops, S], from 0 to 1.
    """

    title: str
    sentences: Sequence[str]
    weights: np.ndarray


def draw_hops(stories: Sequence[Hops], path: str) -> None:
    """Draws the weights of each hop next to the sentences of each story, one story below the other.

    Args:
      stories: at least one story.
      path: path of the file, with an ending from `tfm.visualize.figures.FORMATS`.
    """
    heights = [ROW * len(story.sentences) for story in stories]
    size = COLUMN, sum(heights) + TITLE * len(stories) + BAR
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(stories), 1, squeeze=False, height_ratios=heights).ravel()
    for axes, story in zip(grid, stories, strict=True):
        image = axes.imshow(story.weights.T, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        hops = [f"hop {hop + 1}" for hop in range(len(story.weights))]
        axes.set_xticks(range(len(hops)), hops, fontsize=SMALL)
        axes.set_yticks(range(len(story.sentences)), story.sentences, fontsize=SMALL, parse_math=False)
        axes.set_title(story.title, fontsize=TEXT, loc="right", parse_math=False)
    bar = figure.colorbar(image, ax=grid.tolist(), location="bottom", shrink=0.6, aspect=30)
    bar.set_label("attention weight", fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL)
    save(figure, path, dpi=SHARP_DPI)
