"""Tests of plots: numbers, axis titles, legends, and legibility at the width of a column."""

import numpy as np
import pytest
from matplotlib.layout_engine import ConstrainedLayoutEngine

from benchmarks import guide_figures
from tfm.visualize import plots

# A line of training and a line of validation for each step, as in metrics.jsonl.
ROWS = [
    {"step": step, "time": 0.0, **scores}
    for step in (1, 2, 3)
    for scores in ({"train/nll": 5.0 / step}, {"validation/bleu": 3.0 * step})
]
ENCODING = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])
MASK, LOGITS = np.tril(np.ones((2, 2), bool)), np.array([[1.0, 2], [3, 4]])


@pytest.fixture(scope="module")
def figures():
    """Returns a figure of each kind."""
    runs = {"a": ROWS, "b": ROWS[:4], "c": []}
    return {
        "curves": plots.plot_curves(runs, ["train/nll", "validation/bleu"]),
        "positions": guide_figures.plot_positions({"interleaved": ENCODING}),
        "masks": guide_figures.plot_masks({"causal": MASK}, LOGITS, {"causal": np.eye(2)}),
        "schedules": guide_figures.plot_schedules({"constant": np.array([0.5, 1.0, 0.25])}),
    }


KINDS = ("curves", "positions", "masks", "schedules")


@pytest.mark.parametrize("name", KINDS)
def test_axes_have_titles_and_legible_text(figures, name):
    figure = figures[name]
    assert figure.get_size_inches()[0] <= plots.COLUMN * 3
    assert isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine)  # otherwise titles would overlap
    for axes in figure.axes:
        if axes.get_label() == "<colorbar>":
            continue
        assert axes.get_xlabel()
        assert axes.get_ylabel()
        labels = [axes.xaxis.label, axes.yaxis.label, *axes.get_xticklabels(), *axes.get_yticklabels()]
        assert min(label.get_fontsize() for label in labels) >= 7


@pytest.mark.parametrize(
    ("name", "panel", "line", "expected"),
    [
        ("curves", 0, 0, [[1, 5], [2, 2.5], [3, 5 / 3]]),
        ("curves", 1, 1, [[1, 3], [2, 6]]),
        ("positions", 1, 0, [[0, (1 + 4 + 10) / 3], [1, (0 + 2) / 2], [2, 3]]),
        ("schedules", 0, 0, [[1, 0.5], [2, 1], [3, 0.25]]),
    ],
)
def test_lines_have_the_numbers(figures, name, panel, line, expected):
    np.testing.assert_allclose(figures[name].axes[panel].lines[line].get_xydata(), expected)


def test_images_have_the_numbers(figures):
    np.testing.assert_array_equal(figures["positions"].axes[0].images[0].get_array(), ENCODING)
    before, after = (axes.images[0].get_array() for axes in figures["masks"].axes[:2])
    np.testing.assert_array_equal(np.ma.filled(before, np.nan), [[1, np.nan], [3, 4]])
    np.testing.assert_array_equal(after, np.eye(2))


def test_lines_of_runs_have_names_and_differ_without_colour(figures):
    loss, bleu = figures["curves"].axes
    assert [len(axes.lines) for axes in (loss, bleu)] == [2, 2]  # the third run has neither metric
    assert len({line.get_color() for line in loss.lines}) == 2
    assert len({line.get_linestyle() for line in loss.lines}) == 2
    assert [line.get_marker() for line in loss.lines] == ["o", "s"]
    assert loss.get_ylabel() == "train nll (nats)"
    (legend,) = figures["curves"].legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]


@pytest.mark.parametrize("names", [("a", "b"), ("_a", "b"), ("_child0",), ("$x$",)])
def test_legend_has_every_drawn_line(names):
    for figure in (
        plots.plot_curves(dict.fromkeys(names, ROWS) | {"absent": [{"step": 1}]}, ["train/nll"]),
        guide_figures.plot_schedules(dict.fromkeys(names, np.ones(3))),
    ):
        texts = figure.legends[0].get_texts()
        assert [text.get_text().partition(" ")[0] for text in texts] == list(names)
        assert not any(text.get_parse_math() for text in texts)


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (2, 2), (3, 3), (4, 2), (5, 3)])
def test_each_panel_is_as_wide_as_a_column(count, columns):
    figure = plots.plot_curves({"a": ROWS}, ["train/nll"] * count)
    assert figure.get_size_inches()[0] == plots.COLUMN * columns
