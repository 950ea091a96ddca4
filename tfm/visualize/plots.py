"""The curves of runs as a `Figure`, as wide as a column or a page, and what all plots share.

`tfm.visualize.figures.save` writes the figures. The colours of Okabe and Ito are for the colour-blind. Dashes
and markers distinguish the lines without colour.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

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
    figure, panels = make_panels(len(metrics))
    drawn: dict[str, Any] = {}
    for axes, metric in zip(panels, metrics, strict=True):
        lines = {}
        for name, rows in runs.items():
            points = [(row["step"], row[metric]) for row in rows if metric in row]
            lines[name] = list(zip(*points, strict=True))
        drawn |= plot_lines(axes, lines, "training step (updates)", _axis_of(metric))
    add_legend(figure, drawn)
    return figure


def make_panels(count: int) -> tuple[Figure, list[Any]]:
    """Returns a figure with panels in a grid, each as wide as a column, and the axes of the panels."""
    columns = 2 if count in (2, 4) else min(count, 3)
    lines = -(-count // columns)
    figure = Figure(figsize=(COLUMN * columns, 2.6 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel().tolist()
    for axes in panels[count:]:
        axes.set_axis_off()
    return figure, panels[:count]


def plot_lines(axes: Any, lines: Mapping[str, Any], x: str, y: str) -> dict[str, Any]:
    """Draws lines {name: (x values, y values)}, and the titles of the axes.

    The place of a line in `lines` decides its style. A line with few points has markers. An empty line is not
    drawn.

    Returns:
      {name: drawn line}, for `add_legend`. Matplotlib's own list omits names that begin with "_".
    """
    drawn = {}
    styles = zip(*map(itertools.cycle, (COLOURS, DASHES, MARKERS)), strict=True)
    for (name, line), (colour, dashes, marker) in zip(lines.items(), styles, strict=False):
        if line:
            shown = marker if len(line[0]) <= MAX_MARKED_POINTS else None
            style: dict[str, Any] = {"color": colour, "linestyle": dashes, "linewidth": 1.4}
            (drawn[name],) = axes.plot(*line, **style, marker=shown, markersize=4, label=name)
    label_axes(axes, x, y)
    return drawn


def label_axes(axes: Any, x: str, y: str, title: str = "") -> None:
    """Sets the labels and the title of a panel. Panels without an image get a grid."""
    axes.set_xlabel(x, fontsize=TEXT)
    axes.set_ylabel(y, fontsize=TEXT)
    axes.set_title(title, fontsize=TEXT, parse_math=False)
    axes.tick_params(labelsize=SMALL, which="both")
    if not axes.images:
        axes.grid(alpha=0.3)


def add_legend(figure: Figure, lines: Mapping[str, Any]) -> None:
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
