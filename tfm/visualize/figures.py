"""Figures of the attention of all heads and layers, and the files of figures."""

import os
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from tfm.errors import UserError
from tfm.io.files import atomic_file
from tfm.memory import check_estimate, host_memory
from tfm.visualize.observation import Track

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
PICTURE_PANEL = 1.6  # inches, height and width of a panel that shows an image
TINT = 0.8  # opacity of the largest number over an image


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
    queries, keys = (_shorten(axis.labels) for axis in panels[1:3])
    grid = plan_grid(panels, title)
    figure = _start_figure(grid, title)
    palette = "PuOr" if panels.least < 0 else "Blues"
    colours: dict[str, Any] = {"cmap": palette, "vmin": panels.least, "vmax": panels.largest}
    for layer, head, axes in _add_panels(figure, grid, panels.titles):
        image = axes.imshow(panels.weights[layer, head], **colours, aspect="auto", interpolation="nearest")
        axes.tick_params(length=2, pad=1)
        axes.set_xticks(range(len(keys)), keys, rotation=90, fontsize=LABEL_SIZE, parse_math=False)
        axes.set_yticks(range(len(queries)), [])
        if head == 0:
            axes.set_yticks(range(len(queries)), queries, fontsize=LABEL_SIZE, parse_math=False)
    figure.supxlabel(panels.keys.title, fontsize=TEXT_SIZE, y=0.08 / grid.size[1], va="bottom")
    figure.supylabel(panels.queries.title, fontsize=TEXT_SIZE, x=0.08 / grid.size[0], ha="left")
    _add_bar(figure, grid, image, panels.unit)
    save(figure, path)


def draw_patches(panels: Panels, track: Track, title: str, path: str) -> None:
    """Draws an image for each layer and head, tinted where the class token looks.

    Args:
      panels: the numbers between the elements of `track`.
      track: the track of an image. Without a class token, the tint is the mean over all patches.
      title, path: see `draw_attention`.

    Raises:
      UserError: see `draw_attention`.
      ValueError: if the track belongs to a text.
    """
    if track.picture is None or track.grid is None:
        raise ValueError("Expected the track of an image, got the track of a text.")
    patches = track.grid[0] * track.grid[1]
    has_class_token = len(track.labels) > patches
    rows = panels.weights[:, :, 0] if has_class_token else panels.weights.mean(2)
    tints = rows[..., -patches:].reshape(*rows.shape[:2], *track.grid)
    size = (PICTURE_PANEL, PICTURE_PANEL)
    layers, heads = panels.weights.shape[:2]
    grid = _fit(Grid(layers, heads, size, left=GAP, below=GAP), title)
    figure = _start_figure(grid, title)
    extent = (0, track.grid[1], track.grid[0], 0)
    largest = float(np.abs(tints).max()) or 1.0
    is_signed = panels.least < 0
    colours = ScalarMappable(Normalize(-largest * is_signed, largest), "PuOr" if is_signed else "Oranges")
    for layer, head, axes in _add_panels(figure, grid, panels.titles):
        axes.imshow(track.picture, cmap="gray", vmin=0, vmax=255, extent=extent, interpolation="nearest")
        tint = tints[layer, head]
        alpha: Any = TINT * np.abs(tint) / largest
        shades: dict[str, Any] = {"cmap": colours.cmap, "norm": colours.norm, "alpha": alpha}
        axes.imshow(tint, **shades, extent=extent, interpolation="nearest")
        axes.set_axis_off()
    query = "the class token" if has_class_token else "a patch, in the mean,"
    figure.supxlabel(f"what {query} looks at", fontsize=TEXT_SIZE, y=0.08 / grid.size[1], va="bottom")
    _add_bar(figure, grid, colours, panels.unit)
    save(figure, path)


def plan_grid(panels: Panels, title: str) -> "Grid":
    """Returns the positions of the panels of `draw_attention`.

    Raises:
      UserError: if a side has more pixels than Matplotlib draws, or the picture does not fit in the memory.
    """
    grid = Grid.of(*panels.weights.shape[:2], *(_shorten(axis.labels) for axis in panels[1:3]))
    return _fit(grid, title)


def _fit(grid: "Grid", title: str) -> "Grid":
    """Returns the grid with space for a title. Raises the errors of `plan_grid`."""
    grid = grid._replace(header=TITLE * max(len(grid.wrap(title)), 1))
    width, height = (round(inches * DPI) for inches in grid.size)
    advice = "shorten the example, or lower --max_tokens"
    if max(width, height) > MOST_PIXELS:
        raise UserError(
            f"The picture would have {width:,} x {height:,} pixels, but a side can have at most "
            f"{MOST_PIXELS:,}: {advice}."
        )
    needed = 3 * 4 * width * height  # bytes: the canvas, its copy for PNG, the packed file
    check_estimate(f"A picture of {width:,} x {height:,} pixels", needed, host_memory(), advice)
    return grid


def _start_figure(grid: "Grid", title: str) -> Figure:
    """Returns a figure with its title."""
    figure = Figure(figsize=grid.size)
    left, top = 0.1 / grid.size[0], 1 - 0.1 / grid.size[1]
    text = "\n".join(grid.wrap(title))
    figure.text(left, top, text, va="top", fontsize=TEXT_SIZE + 2, parse_math=False)
    return figure


def _add_panels(
    figure: Figure, grid: "Grid", titles: Sequence[Sequence[str]]
) -> Iterator[tuple[int, int, Axes]]:
    """Yields (layer, head, axes) of each panel."""
    for layer in range(grid.layers):
        for head in range(grid.heads):
            axes = figure.add_axes(grid.panel(layer, head))
            axes.set_title(titles[layer][head], fontsize=TEXT_SIZE - 1, pad=3)
            yield layer, head, axes


def _add_bar(figure: Figure, grid: "Grid", colours: ScalarMappable, unit: str) -> None:
    """Adds the bar that explains the colours."""
    bar = figure.colorbar(colours, cax=figure.add_axes(grid.bar()))
    bar.set_label(unit, fontsize=TEXT_SIZE)
    bar.ax.tick_params(labelsize=LABEL_SIZE)


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

    def wrap(self, title: str) -> list[str]:
        """Splits a title into at most `MOST_LINES` lines as wide as the figure."""
        width = max(int(self.size[0] / TITLE_CHARACTER), 10)
        return textwrap.wrap(title, width, max_lines=MOST_LINES, placeholder="\u2026")

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


def _shorten(labels: Sequence[str]) -> list[str]:
    """Cuts each label after `MOST_CHARACTERS` characters."""
    most = MOST_CHARACTERS
    return [label if len(label) <= most else f"{label[: most - 1]}\u2026" for label in labels]


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
