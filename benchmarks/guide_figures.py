"""The figures of the guide as functions from arrays to a `Figure`: positions, masks and schedules.

`tfm.visualize.figures.save` writes the figures.
"""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tfm.visualize.plots import COLUMN, SMALL, TEXT, add_legend, label_axes, make_panels, plot_lines


def plot_positions(encodings: Mapping[str, np.ndarray]) -> Figure:
    """Plots a heat map of each encoding, and the mean dot product of two positions over their distance.

    Args:
      encodings: {name: float [positions, D]}.
    """
    figure = Figure(figsize=(COLUMN, 3.4 * len(encodings)), layout="constrained")
    maps, dots = figure.subplots(2 * len(encodings), 1).reshape(-1, 2).T
    for axes, products, (name, encoding) in zip(maps, dots, encodings.items(), strict=True):
        largest = np.abs(encoding).max()
        image = axes.imshow(
            encoding, cmap="PuOr", vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest"
        )
        label_axes(axes, "feature", "position (tokens)", f"{name}: encoding")
        bar = figure.colorbar(image, ax=axes)
        bar.ax.tick_params(labelsize=SMALL)
        plot_lines(products, {name: dot_products(encoding)}, "distance (tokens)", "mean dot product")
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
    """Plots masked logits and the attention weights after the softmax, with a row for each mask.

    Args:
      masks: {name: bool [L, M]}, True where the query may attend.
      logits: float [L, M], the logits of all rows. Masked logits are left white.
      weights: {name: float [L, M]}, the weights after the softmax for the names of `masks`.
    """
    figure = Figure(figsize=(COLUMN, 1.7 * len(masks) + 0.6), layout="constrained")
    columns = figure.subplots(len(masks), 2, squeeze=False).T
    largest = np.abs(logits).max()
    for before, after, (name, mask) in zip(*columns, masks.items(), strict=True):
        kept = np.where(mask, logits, np.nan)
        images = [
            before.imshow(kept, cmap="PuOr", vmin=-largest, vmax=largest),
            after.imshow(weights[name], cmap="Blues", vmin=0, vmax=1),
        ]
        label_axes(before, "key position", "query position", f"{name}\nbefore softmax")
        label_axes(after, "key position", "query position", f"{name}\nafter softmax")
    for column, image, unit in zip(
        columns, images, ("logit (white: masked)", "attention weight"), strict=True
    ):
        bar = figure.colorbar(image, ax=column.tolist(), location="bottom", aspect=12)
        bar.set_label(unit, fontsize=TEXT)
        bar.ax.tick_params(labelsize=SMALL)
    return figure


def plot_schedules(rates: Mapping[str, np.ndarray]) -> Figure:
    """Plots learning rates over the steps, counted from 1.

    Args:
      rates: {name of the schedule: float [steps]}.
    """
    figure, (axes,) = make_panels(1)
    lines = {name: (np.arange(1, len(rate) + 1), rate) for name, rate in rates.items()}
    drawn = plot_lines(axes, lines, "training step (updates)", "learning rate")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    add_legend(figure, drawn)
    return figure
