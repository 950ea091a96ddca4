"""Figures of learning curves, and of the attention weights of all heads and layers."""

import os
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from tfm.errors import UserError
from tfm.io.files import atomic_file
from tfm.memory import check_estimate, host_memory

FORMATS = ("png", "svg", "pdf")
# SVG and PDF files keep text as text. The same numbers give the same file, byte for byte.
SAVING: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "tfm", "pdf.fonttype": 42}
UNDATED = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
DPI = 110
MOST_PIXELS = (1 << 16) - 1  # on a side, limit of Matplotlib's renderer
# Sizes in inches. A panel has a cell for each token, so the labels of tokens do not overlap.
CELL, LEAST_PANEL, GAP, TITLE, BAR = 0.16, 1.3, 0.12, 0.3, 1.25
CHARACTER, TITLE_CHARACTER = 0.075, 0.11  # approximate width of a character in a label and in the title
MOST_CHARACTERS = 34  # of a label; longer labels are cut
MOST_LINES = 4  # of a title
LABEL_SIZE, TEXT_SIZE = 8, 10  # points
# Okabe and Ito's colours for the colour-blind. Dashes distinguish the lines without colour.
LINES = (("#0072B2", "-"), ("#D55E00", "--"), ("#009E73", ":"))
SCORES = {"validation/bleu": ("validation BLEU, greedy search", "BLEU (0 to 100)")}  # title and axis


class Axis(NamedTuple):
    """An axis of a panel: its title, and a label for each token."""

    title: str
    labels: list[str]


class Panels(NamedTuple):
    """Attention to draw, with a panel for each layer and head.

    Attributes:
      weights: float [layers, heads, L, M], attention weights or other numbers.
      queries, keys: the `Axis` of L and of M.
      titles: for each layer, the titles of its panels.
      unit: label of the colour bar: what the numbers measure.
      least, largest: range of the colours. If `least` is below 0, negative and positive numbers have
        different colours with white at 0.
    """

    weights: np.ndarray
    queries: Axis
    keys: Axis
    titles: list[list[str]]
    unit: str = "attention weight\n(each row sums to 1)"
    least: float = 0.0
    largest: float = 1.0


def draw_curves(rows: Sequence[dict[str, float]], path: str, *, best: str = "validation/bleu") -> None:
    """Draws the loss, the score that selects the best checkpoint, and the learning rate over the steps.

    Args:
      rows: the result of `tfm.training.run_log.read_metrics`.
      path: path of the file, with an ending from `FORMATS`.
      best: name of the score.
    """
    figure = Figure(figsize=(13, 3.8), layout="constrained")
    panels = (
        ("loss", "cross-entropy (nats)", ("train/loss", "train/nll", "validation/nll")),
        (*SCORES.get(best, (best.replace("/", " "), best.rpartition("/")[2])), (best,)),
        ("learning rate", "learning rate (step size of the optimizer)", ("train/learning_rate",)),
    )
    for axes, (title, unit, names) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for name, (colour, dashes) in zip(names, LINES, strict=False):
            points = [(row["step"], row[name]) for row in rows if name in row]
            if points:
                marker = "." if len(points) < 30 else None
                axes.plot(
                    *zip(*points, strict=True), color=colour, linestyle=dashes, label=name, marker=marker
                )
        axes.set(title=title, xlabel="training step (updates)", ylabel=unit)
        axes.grid(alpha=0.3)
        if len(axes.lines) > 1:
            axes.legend()
    save(figure, path)


def draw_attention(panels: Panels, title: str, path: str) -> None:
    """Draws a row of panels for each layer, with a panel for each head.

    Dollar signs in labels and in the title do not start a formula.

    Args:
      panels: the numbers with their axes and titles.
      title: title of the figure.
      path: path of the file, with an ending from `FORMATS`.

    Raises:
      UserError: if the picture is too large to draw or does not fit into the memory.
    """
    weights, queries, keys = panels.weights, panels.queries, panels.keys
    queries, keys = (axis._replace(labels=list(map(_shortened, axis.labels))) for axis in (queries, keys))
    layers, heads = weights.shape[:2]
    grid = Grid.of(layers, heads, queries.labels, keys.labels)
    lines = _wrapped(title, int(grid.size[0] / TITLE_CHARACTER))
    grid = grid._replace(header=TITLE * max(len(lines), 1))
    _check_size(grid.size)
    as_it_is: dict[str, Any] = {"parse_math": False}
    palette = "PuOr" if panels.least < 0 else "Blues"
    colours: dict[str, Any] = {"cmap": palette, "vmin": panels.least, "vmax": panels.largest}
    figure = Figure(figsize=grid.size)
    left, top = 0.1 / grid.size[0], 1 - 0.1 / grid.size[1]
    figure.text(left, top, "\n".join(lines), va="top", fontsize=TEXT_SIZE + 2, **as_it_is)
    for layer, row in enumerate(weights):
        for head, panel in enumerate(row):
            axes = figure.add_axes(grid.panel(layer, head))
            image = axes.imshow(panel, **colours, aspect="auto", interpolation="nearest")
            axes.set_title(panels.titles[layer][head], fontsize=TEXT_SIZE - 1, pad=3)
            axes.tick_params(length=2, pad=1)
            axes.set_xticks(
                range(len(keys.labels)), keys.labels, rotation=90, fontsize=LABEL_SIZE, **as_it_is
            )
            axes.set_yticks(range(len(queries.labels)), [])
            if head == 0:
                axes.set_yticks(range(len(queries.labels)), queries.labels, fontsize=LABEL_SIZE, **as_it_is)
    figure.supxlabel(keys.title, fontsize=TEXT_SIZE, y=0.08 / grid.size[1], va="bottom")
    figure.supylabel(queries.title, fontsize=TEXT_SIZE, x=0.08 / grid.size[0], ha="left")
    bar = figure.colorbar(image, cax=figure.add_axes(grid.bar()))
    bar.set_label(panels.unit, fontsize=TEXT_SIZE)
    bar.ax.tick_params(labelsize=LABEL_SIZE)
    save(figure, path)


def check_attention_figure(layers: int, heads: int, tokens: int) -> None:
    """Checks the size of an attention figure in advance, with labels of the maximum length.

    Raises:
      UserError: if a side has more pixels than Matplotlib draws, or the picture does not fit in the memory.
    """
    labels = ["x" * MOST_CHARACTERS] * tokens
    _check_size(Grid.of(layers, heads, labels, labels).size)


def _check_size(size: tuple[float, float]) -> None:
    """Checks a size in inches. Raises the errors of `check_attention_figure`."""
    width, height = (round(inches * DPI) for inches in size)
    advice = "shorten the sentence, or lower --max_tokens"
    if max(width, height) > MOST_PIXELS:
        raise UserError(
            f"The picture would have {width:,} x {height:,} pixels, but a side can have at most "
            f"{MOST_PIXELS:,}: {advice}."
        )
    needed = 3 * 4 * width * height  # bytes: the canvas, its copy for PNG, the packed file
    check_estimate(f"A picture of {width:,} x {height:,} pixels", needed, host_memory(), advice)


class Grid(NamedTuple):
    """The positions of the panels of a figure, in inches from its lower left corner."""

    layers: int
    heads: int
    panel_size: tuple[float, float]
    left: float  # space left of the first panel, for the axis title and the labels of the rows
    below: float  # space below each panel, for the labels of the columns
    header: float = TITLE  # height of the figure's title

    @classmethod
    def of(cls, layers: int, heads: int, rows: Sequence[str], columns: Sequence[str]) -> "Grid":
        """Returns the grid for the labels of rows and columns."""
        width, height = (max(CELL * len(labels), LEAST_PANEL) for labels in (columns, rows))
        left, below = (max(map(len, labels), default=0) * CHARACTER + GAP for labels in (rows, columns))
        return cls(layers, heads, (width, height), left + 1.5 * TITLE, below)

    @property
    def size(self) -> tuple[float, float]:
        """The width and height of the figure."""
        width = self.left + self.heads * (self.panel_size[0] + GAP) + BAR
        return width, TITLE + self.header + self.layers * self._row

    @property
    def _row(self) -> float:
        """The height of a row of panels with its title and labels."""
        return TITLE + self.panel_size[1] + self.below

    def panel(self, layer: int, head: int) -> tuple[float, float, float, float]:
        """Returns (left, bottom, width, height) of a panel as fractions of the figure, for Matplotlib."""
        left = self.left + head * (self.panel_size[0] + GAP)
        bottom = TITLE + (self.layers - 1 - layer) * self._row + self.below
        return self._shares(left, bottom, *self.panel_size)

    def bar(self) -> tuple[float, float, float, float]:
        """Returns (left, bottom, width, height) of the colour bar as fractions of the figure."""
        left = self.left + self.heads * (self.panel_size[0] + GAP) + GAP
        bottom = TITLE + (self.layers - 1) * self._row + self.below
        return self._shares(left, bottom, 0.2, self.panel_size[1])

    def _shares(
        self, left: float, bottom: float, width: float, height: float
    ) -> tuple[float, float, float, float]:
        """Converts inches into fractions of the figure."""
        across, up = self.size
        return left / across, bottom / up, width / across, height / up


def _wrapped(title: str, width: int) -> list[str]:
    """Splits a title into at most `MOST_LINES` lines of about `width` characters."""
    return textwrap.wrap(title, max(width, 10), max_lines=MOST_LINES, placeholder="\u2026")


def _shortened(text: str) -> str:
    """Cuts a label after `MOST_CHARACTERS` characters."""
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "\u2026"


def save(figure: Figure, path: str, dpi: int = DPI) -> None:
    """Writes a figure atomically, in the format of the path's ending.

    Args:
      figure: the figure to write.
      path: path of the file.
      dpi: pixels per inch of PNG files, and of images inside SVG and PDF files.

    Raises:
      UserError: if the ending is not one of `FORMATS`.
    """
    file_format = os.path.splitext(path)[1].removeprefix(".").lower()
    if file_format not in FORMATS:
        raise UserError(f"Expected the name of a figure to end in .{', .'.join(FORMATS)}, got {path!r}.")
    with matplotlib.rc_context(SAVING), atomic_file(path) as file:
        figure.savefig(file, dpi=dpi, format=file_format, metadata=UNDATED[file_format])
