"""Plots for papers: functions from arrays to a `Figure`, as wide as a column or a page.

`tfm.visualize.figures.save` writes the figures. The colours of Okabe and Ito are for the colour-blind. Dashes
and markers distinguish the lines without colour.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

COLUMN, PAGE = 3.4, 7.0  # widths in inches
TEXT, SMALL = 8, 7  # font sizes in points
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")
MARKERS = "os^Dv<>"
MAX_MARKED_POINTS = 30  # lines with more points have no markers


def plot_curves(runs: Mapping[str, Sequence[Mapping[str, float]]], metrics: Sequence[str]) -> Figure:
    """Plots metrics of several runs over their steps, with a panel for each metric and a line for each run.

    Args:
      runs: {name of the run: rows}. The rows are the result of `tfm.training.run_log.read_metrics`.
      metrics: names of metrics. A panel leaves out the runs that have not logged its metric.
    """
    figure, panels = _panels(len(metrics))
    drawn: dict[str, Any] = {}
    for axes, metric in zip(panels, metrics, strict=True):
        lines = {}
        for name, rows in runs.items():
            points = [(row["step"], row[metric]) for row in rows if metric in row]
            lines[name] = list(zip(*points, strict=True))
        drawn |= _lines(axes, lines, "training step (updates)", _axis_of(metric))
    _legend(figure, drawn)
    return figure


def plot_positions(encodings: Mapping[str, np.ndarray]) -> Figure:
    """Plots a heat map of each encoding, and the mean dot product of two positions over their distance.

    Args:
      encodings: {name: float [positions, D]}.
    """
    figure = Figure(figsize=(PAGE, 2.1 * len(encodings)), layout="constrained")
    maps, dots = figure.subplots(len(encodings), 2, squeeze=False, width_ratios=(3, 2)).T
    for axes, products, (name, encoding) in zip(maps, dots, encodings.items(), strict=True):
        largest = np.abs(encoding).max()
        image = axes.imshow(
            encoding, cmap="PuOr", vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest"
        )
        _label(axes, "feature", "position (tokens)", f"{name}: encoding")
        bar = figure.colorbar(image, ax=axes)
        bar.ax.tick_params(labelsize=SMALL)
        _lines(products, {name: dot_products(encoding)}, "distance (tokens)", "mean dot product")
        products.set_title(f"{name}: by distance", fontsize=TEXT, parse_math=False)
    return figure


def dot_products(encoding: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Computes the mean dot product of all pairs of positions with the same distance.

    Args:
      encoding: float [positions, D].

    Returns:
      (distances from 0 to positions - 1, mean dot products), both [positions].
    """
    products = np.asarray(encoding, np.float64) @ np.asarray(encoding, np.float64).T
    distances = np.arange(len(encoding))
    return distances, np.array([np.diagonal(products, distance).mean() for distance in distances])


def plot_masks(
    masks: Mapping[str, np.ndarray], logits: np.ndarray, weights: Mapping[str, np.ndarray]
) -> Figure:
    """Plots masked logits and the attention weights after the softmax, with a column for each mask.

    Args:
      masks: {name: bool [L, M]}, True where the query may attend.
      logits: float [L, M], the logits of all columns. Masked logits are left white.
      weights: {name: float [L, M]}, the weights after the softmax for the names of `masks`.
    """
    figure = Figure(figsize=(PAGE, 4.3), layout="constrained")
    rows = figure.subplots(2, len(masks), squeeze=False)
    largest = np.abs(logits).max()
    for before, after, (name, mask) in zip(*rows, masks.items(), strict=True):
        kept = np.where(mask, logits, np.nan)
        images = [
            before.imshow(kept, cmap="PuOr", vmin=-largest, vmax=largest),
            after.imshow(weights[name], cmap="Blues", vmin=0, vmax=1),
        ]
        _label(before, "key position", "query position", f"{name}\nbefore softmax")
        _label(after, "key position", "query position", f"{name}\nafter softmax")
    for row, image, unit in zip(rows, images, ("logit (white: masked)", "attention weight"), strict=True):
        bar = figure.colorbar(image, ax=row.tolist())
        bar.set_label(unit, fontsize=TEXT)
        bar.ax.tick_params(labelsize=SMALL)
    return figure


def plot_schedules(rates: Mapping[str, np.ndarray]) -> Figure:
    """Plots learning rates over the steps, counted from 1.

    Args:
      rates: {name of the schedule: float [steps]}.
    """
    figure, (axes,) = _panels(1)
    lines = {name: (np.arange(1, len(rate) + 1), rate) for name, rate in rates.items()}
    drawn = _lines(axes, lines, "training step (updates)", "learning rate")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    _legend(figure, drawn)
    return figure


def _panels(count: int) -> tuple[Figure, list[Any]]:
    """Returns a figure with panels in a grid, each as wide as a column, and the axes of the panels."""
    columns = 2 if count in (2, 4) else min(count, 3)
    lines = -(-count // columns)
    figure = Figure(figsize=(COLUMN * columns, 2.6 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel().tolist()
    for axes in panels[count:]:
        axes.set_axis_off()
    return figure, panels[:count]


def _lines(axes: Any, lines: Mapping[str, Any], x: str, y: str) -> dict[str, Any]:
    """Draws lines {name: (x values, y values)}, and the titles of the axes.

    The place of a line in `lines` decides its style. A line with few points has markers. An empty line is not
    drawn.

    Returns:
      {name: drawn line}, for `_legend`. Matplotlib's own list omits names that begin with "_".
    """
    drawn = {}
    styles = zip(*map(itertools.cycle, (COLOURS, DASHES, MARKERS)), strict=True)
    for (name, line), (colour, dashes, marker) in zip(lines.items(), styles, strict=False):
        if line:
            shown = marker if len(line[0]) <= MAX_MARKED_POINTS else None
            style: dict[str, Any] = {"color": colour, "linestyle": dashes, "linewidth": 1.4}
            (drawn[name],) = axes.plot(*line, **style, marker=shown, markersize=4, label=name)
    _label(axes, x, y)
    return drawn


def _label(axes: Any, x: str, y: str, title: str = "") -> None:
    """Sets the labels and the title of a panel. Panels without an image get a grid."""
    axes.set_xlabel(x, fontsize=TEXT)
    axes.set_ylabel(y, fontsize=TEXT)
    axes.set_title(title, fontsize=TEXT, parse_math=False)
    axes.tick_params(labelsize=SMALL, which="both")
    if not axes.images:
        axes.grid(alpha=0.3)


def _legend(figure: Figure, lines: Mapping[str, Any]) -> None:
    """Adds a legend below all panels for drawn lines {name: line}."""
    if lines:
        place: dict[str, Any] = {"loc": "outside lower center", "fontsize": SMALL, "frameon": False}
        legend = figure.legend(list(lines.values()), list(lines), **place)
        for text in legend.get_texts():
            text.set_parse_math(False)


def _axis_of(metric: str) -> str:
    """Returns the title of a metric's axis, with the unit if it is known."""
    units = {"loss": " (nats)", "nll": " (nats)", "bleu": " (0 to 100)", "accuracy": " (fraction)"}
    return metric.replace("/", " ").replace("_", " ") + units.get(metric.rpartition("/")[2], "")
