"""Figures of the attention of all heads and layers, and the files of figures."""

import functools
import logging
import os
import re
import textwrap
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, fontManager, get_font
from matplotlib.text import Text

from tfm.devices.memory import check_estimate, host_memory
from tfm.errors import UserError
from tfm.interpret.observation import Track
from tfm.io.files import atomic_file

FORMATS = ("png", "svg", "pdf")
# SVG and PDF files keep text as text. The same numbers give the same file, byte for byte.
SAVING: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "tfm", "pdf.fonttype": 42}
UNDATED = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
DPI = 110
SHARP_DPI = 165  # of a figure that is as narrow as a phone, whose screen has more pixels
MOST_PIXELS = (1 << 16) - 1  # on a side, limit of Matplotlib's renderer
# Sizes in inches. A panel has a cell for each token, so the labels of tokens do not overlap.
CELL, LEAST_PANEL, GAP, TITLE, BAR = 0.16, 1.3, 0.12, 0.3, 1.25
CHARACTER, TITLE_CHARACTER = 0.075, 0.11  # approximate width of a character in a label and in the title
MOST_CHARACTERS = 34  # of a label; longer labels are cut
MOST_LINES = 4  # of a title
LABEL_SIZE, TEXT_SIZE = 8, 10  # points
PICTURE_PANEL = 1.6  # inches, height and width of a panel that shows an image
TINT = 0.8  # opacity of the largest number over an image
# Fonts with the characters of scripts that Matplotlib's own font lacks.
FALLBACKS = re.compile(
    "Noto Sans|Source Han Sans|WenQuanYi|IPAGothic|Droid Sans Fallback|PingFang|Hiragino|Unifont"
)
MOST_SHOWN_CHARACTERS = 10  # of a warning
log = logging.getLogger(__name__)


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
      largest: number with the darkest colour. White is 0.
    """

    weights: np.ndarray
    queries: Axis
    keys: Axis
    titles: list[list[str]]
    unit: str = "attention weight\n(each row sums to 1)"
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
    queries, keys = (_shorten(axis.labels) for axis in (panels.queries, panels.keys))
    grid = plan_grid(panels, title)
    figure, axes, bar = _start_figure(grid, panels.titles)
    colours: dict[str, Any] = {"cmap": "Blues", "vmin": 0.0, "vmax": panels.largest}
    for (layer, head), panel in np.ndenumerate(axes):
        image = panel.imshow(panels.weights[layer, head], **colours, aspect="auto", interpolation="nearest")
        panel.tick_params(length=2, pad=1)
        panel.set_xticks(range(len(keys)), keys, rotation=90, fontsize=LABEL_SIZE, parse_math=False)
        panel.set_yticks(range(len(queries)), [])
        if head == 0:
            panel.set_yticks(range(len(queries)), queries, fontsize=LABEL_SIZE, parse_math=False)
    figure.supxlabel(panels.keys.title, fontsize=TEXT_SIZE, y=0.08 / grid.size[1], va="bottom")
    figure.supylabel(panels.queries.title, fontsize=TEXT_SIZE, x=0.08 / grid.size[0], ha="left")
    _draw_bar(bar, image, panels.unit)
    save(figure, path)


def draw_patches(panels: Panels, track: Track, title: str, path: str) -> None:
    """Draws an image for each layer and head, tinted where the first query looks.

    Args:
      panels: the numbers whose keys are the elements of `track`.
      track: the track of an image. If the first query is a patch, the tint is the mean over all patches.
      title, path: see `draw_attention`.

    Raises:
      UserError: see `draw_attention`.
      ValueError: if the track belongs to a text.
    """
    if track.picture is None or track.grid is None:
        raise ValueError("Expected the track of an image, got the track of a text.")
    patches = track.grid[0] * track.grid[1]
    query = panels.queries.labels[0]
    is_patch = query == track.labels[-patches]
    rows = panels.weights.mean(2) if is_patch else panels.weights[:, :, 0]
    tints = rows[..., -patches:].reshape(*rows.shape[:2], *track.grid)
    grid = _plan(panels, (PICTURE_PANEL, PICTURE_PANEL), GAP, GAP, title)
    figure, axes, bar = _start_figure(grid, panels.titles)
    extent = (0, track.grid[1], track.grid[0], 0)
    largest = float(tints.max()) or 1.0
    colours = ScalarMappable(Normalize(0.0, largest), "Oranges")
    for index, panel in np.ndenumerate(axes):
        panel.imshow(track.picture, cmap="gray", vmin=0, vmax=255, extent=extent, interpolation="nearest")
        shades: dict[str, Any] = {"cmap": colours.cmap, "alpha": TINT * tints[index] / largest}
        panel.imshow(tints[index], **shades, norm=colours.norm, extent=extent, interpolation="nearest")
        panel.set_axis_off()
    text = "what all patches look at, on average" if is_patch else f"what \u201c{query}\u201d looks at"
    figure.supxlabel(text, fontsize=TEXT_SIZE, y=0.08 / grid.size[1], va="bottom", parse_math=False)
    _draw_bar(bar, colours, panels.unit)
    save(figure, path)


class Grid(NamedTuple):
    """The sizes of a figure, in inches.

    Attributes:
      size, panel: width and height of the figure and of a panel.
      left: space left of the first panel, for the axis title and the labels of the rows.
      below: space below each panel, for the labels of the columns.
      title: lines of the title.
    """

    size: tuple[float, float]
    panel: tuple[float, float]
    left: float
    below: float
    title: list[str]


def plan_grid(panels: Panels, title: str) -> Grid:
    """Returns the sizes of the figure of `draw_attention`.

    Raises:
      UserError: if a side has more pixels than Matplotlib draws, or the picture does not fit in the memory.
    """
    rows, columns = (_shorten(axis.labels) for axis in (panels.queries, panels.keys))
    panel = max(CELL * len(columns), LEAST_PANEL), max(CELL * len(rows), LEAST_PANEL)
    left, below = (max(map(len, labels), default=0) * CHARACTER + GAP for labels in (rows, columns))
    return _plan(panels, panel, left + 1.5 * TITLE, below, title)


def _plan(panels: Panels, panel: tuple[float, float], left: float, below: float, title: str) -> Grid:
    """Returns the sizes of a figure with a panel for each layer and head. For the errors, see `plan_grid`."""
    layers, heads = panels.weights.shape[:2]
    width = left + heads * (panel[0] + GAP) + BAR
    line_length = max(int(width / TITLE_CHARACTER), 10)
    lines = textwrap.wrap(title, line_length, max_lines=MOST_LINES, placeholder="\u2026")
    height = TITLE * (1 + max(len(lines), 1)) + layers * (TITLE + panel[1] + below)
    pixels = round(width * DPI), round(height * DPI)
    name, advice = f"{pixels[0]:,} x {pixels[1]:,} pixels", "shorten the example, or lower --max_tokens"
    if max(pixels) > MOST_PIXELS:
        raise UserError(
            f"The picture would have {name}, but a side can have at most {MOST_PIXELS:,}: {advice}."
        )
    needed = 3 * 4 * pixels[0] * pixels[1]  # bytes: the canvas, its copy for PNG, the packed file
    check_estimate(f"A picture of {name}", needed, host_memory(), advice)
    return Grid((width, height), panel, left, below, lines)


def _start_figure(grid: Grid, titles: Sequence[Sequence[str]]) -> tuple[Figure, np.ndarray, Axes]:
    """Returns a figure with its title, the axes of the panels [layers, heads], and the axes of the bar.

    Args:
      grid: sizes of the figure.
      titles: for each layer, the titles of its panels.
    """
    (width, height), (panel_width, panel_height) = grid.size, grid.panel
    layers, heads = len(titles), len(titles[0])
    right = grid.left + heads * (panel_width + GAP) - GAP
    row = TITLE + panel_height + grid.below
    figure = Figure(figsize=grid.size)
    place = 0.1 / width, 1 - 0.1 / height
    figure.text(*place, "\n".join(grid.title), va="top", fontsize=TEXT_SIZE + 2, parse_math=False)
    places = {
        "left": grid.left / width,
        "right": right / width,
        "bottom": (TITLE + grid.below) / height,
        "top": layers * row / height,
        "wspace": GAP / panel_width,
        "hspace": (TITLE + grid.below) / panel_height,
    }
    axes = figure.subplots(layers, heads, squeeze=False, gridspec_kw=places)
    for index, panel in np.ndenumerate(axes):
        panel.set_title(titles[index[0]][index[1]], fontsize=TEXT_SIZE - 1, pad=3)
    bar = (right + 2 * GAP) / width, (layers * row - panel_height) / height
    return figure, axes, figure.add_axes((*bar, 0.2 / width, panel_height / height))


def _draw_bar(axes: Axes, colours: ScalarMappable, unit: str) -> None:
    """Draws the bar that explains the colours."""
    bar = axes.figure.colorbar(colours, cax=axes)
    bar.set_label(unit, fontsize=TEXT_SIZE)
    bar.ax.tick_params(labelsize=LABEL_SIZE)


def _shorten(labels: Sequence[str]) -> list[str]:
    """Cuts each label after `MOST_CHARACTERS` characters."""
    most = MOST_CHARACTERS
    return [label if len(label) <= most else f"{label[: most - 1]}\u2026" for label in labels]


def find_format(path: str) -> str:
    """Returns the format of a figure's file, the ending of its path.

    Raises:
      UserError: if the ending is not one of `FORMATS`.
    """
    file_format = os.path.splitext(path)[1].removeprefix(".").lower()
    if file_format not in FORMATS:
        raise UserError(f"Expected the name of a figure to end in .{', .'.join(FORMATS)}, got {path!r}.")
    return file_format


def set_fonts(figure: Figure) -> None:
    """Adds fonts of other scripts to the texts of a figure, and logs a warning if a character has no font."""
    letters = {letter for text in figure.findobj(Text) for letter in text.get_text() if not letter.isascii()}
    if not letters:
        return
    families, known = _find_fonts()
    for text in figure.findobj(Text):
        text.set_fontfamily(families)
    if missing := sorted(letter for letter in letters if letter.isprintable() and ord(letter) not in known):
        _warn_of_missing_fonts("".join(missing[:MOST_SHOWN_CHARACTERS]))


@functools.cache
def _find_fonts() -> tuple[list[str], set[int]]:
    """Returns Matplotlib's font and the installed fonts of other scripts, and the characters of them all."""
    installed = {font.name for font in fontManager.ttflist}
    fallbacks = sorted(name for name in installed if FALLBACKS.match(name))
    families = [matplotlib.rcParams["font.sans-serif"][0], *fallbacks]
    return families, set().union(*(get_font(findfont(family)).get_charmap() for family in families))


@functools.cache
def _warn_of_missing_fonts(characters: str) -> None:
    log.warning(
        "No font on this machine has the characters %s, so figures show boxes. Install a font such as Noto",
        characters,
    )


def save(figure: Figure, path: str, dpi: int = DPI) -> None:
    """Writes a figure atomically, in the format of the path's ending. Creates its folder.

    Args:
      figure: the figure to write.
      path: path of the file.
      dpi: pixels per inch of PNG files, and of images inside SVG and PDF files.

    Raises:
      UserError: see `find_format`.
    """
    file_format = find_format(path)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    set_fonts(figure)
    with matplotlib.rc_context(SAVING), atomic_file(path) as file, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # `set_fonts` logs them once
        figure.savefig(file, dpi=dpi, format=file_format, metadata=UNDATED[file_format])
