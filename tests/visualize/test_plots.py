"""Plots: the numbers drawn, axis titles, and legibility at the width of a column."""

import numpy as np
import pytest
from matplotlib.layout_engine import ConstrainedLayoutEngine

from tfm.visualize import plots
from tfm.visualize.measures import Calibration

ROWS = [{"step": step, "train/nll": 5.0 / step, "validation/bleu": 3.0 * step} for step in (1, 2, 3)]


def points(axes, line=0):
    """The points of a line, [n, 2]."""
    return axes.lines[line].get_xydata()


def figures():
    """A figure of each kind."""
    rng = np.random.default_rng(0)
    masks = {"causal": np.tril(np.ones((3, 3), bool))}
    calibration = Calibration(np.array([0.3, 0.9]), np.array([0.5, 0.8]), np.array([1, 3]))
    return {
        "curves": plots.plot_curves({"a": ROWS, "b": ROWS[:2]}, ["train/nll", "validation/bleu"]),
        "positions": plots.plot_positions({"interleaved": rng.normal(size=(5, 4))}),
        "masks": plots.plot_masks(masks, rng.normal(size=(3, 3)), masks),
        "schedules": plots.plot_schedules({"constant": np.ones(5)}),
        "calibration": plots.plot_calibration({"a": calibration}),
        "lengths": plots.plot_lengths({"a": ([3.0, 7.5], [40.0, 30.0], [10, 12])}),
        "neighbours": plots.plot_neighbours({"dog": (["cat", "cow"], [0.7, 0.5])}),
        "norms": plots.plot_norms(
            {"embedding": 3.0}, {"encoder.layers_0.self_attention_residual.output": 1.0}
        ),
    }


@pytest.mark.long
@pytest.mark.parametrize("name", figures())
def test_axes_have_titles_and_legible_text(name):
    figure = figures()[name]
    assert figure.get_size_inches()[0] <= plots.COLUMN * 3
    assert isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine)  # else titles would overlap
    for axes in figure.axes:
        if axes.get_label() == "<colorbar>":
            continue
        assert axes.get_xlabel()
        if name not in ("neighbours", "norms"):  # whose rows are named one by one
            assert axes.get_ylabel()
        labels = [axes.xaxis.label, axes.yaxis.label, *axes.get_xticklabels(), *axes.get_yticklabels()]
        assert min(label.get_fontsize() for label in labels) >= 7


@pytest.mark.parametrize(("activations", "width"), [({}, plots.COLUMN), ({"embedding": 1.0}, plots.PAGE)])
def test_norms_take_a_page_if_there_are_activations(activations, width):
    figure = plots.plot_norms({"embedding": 3.0}, activations)
    assert figure.get_size_inches()[0] == width


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (2, 2), (3, 3), (4, 2), (5, 3)])
def test_panels_are_as_wide_as_a_column(count, columns):
    figure = plots.plot_curves({"a": ROWS}, ["train/nll"] * count)
    assert figure.get_size_inches()[0] == plots.COLUMN * columns


def test_curves_of_several_runs():
    figure = plots.plot_curves(
        {"a": ROWS, "b": ROWS[:2], "c": [{"step": 1}]}, ["train/nll", "validation/bleu"]
    )
    loss, bleu = figure.axes
    np.testing.assert_array_equal(points(loss), [[1, 5], [2, 2.5], [3, 5 / 3]])
    np.testing.assert_array_equal(points(bleu, 1), [[1, 3], [2, 6]])
    assert [len(axes.lines) for axes in figure.axes] == [2, 2]
    assert len({line.get_color() for line in loss.lines}) == 2
    assert len({line.get_linestyle() for line in loss.lines}) == 2  # told apart without colour
    assert loss.get_ylabel() == "train nll (nats)"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]


def test_positions_and_their_dot_products():
    encoding = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])
    figure = plots.plot_positions({"interleaved": encoding})
    heat, products = figure.axes[:2]
    np.testing.assert_array_equal(heat.images[0].get_array(), encoding)
    expected = [[0, (1 + 4 + 10) / 3], [1, (0 + 2) / 2], [2, 3]]
    np.testing.assert_allclose(points(products), expected)


def test_masks_before_and_after():
    mask, logits, weights = np.tril(np.ones((2, 2), bool)), np.array([[1.0, 2], [3, 4]]), np.eye(2)
    figure = plots.plot_masks({"causal": mask}, logits, {"causal": weights})
    before, after = figure.axes[:2]
    np.testing.assert_array_equal(np.ma.filled(before.images[0].get_array(), np.nan), [[1, np.nan], [3, 4]])
    np.testing.assert_array_equal(after.images[0].get_array(), weights)


def test_schedules_count_steps_from_one():
    (axes,) = plots.plot_schedules({"a": np.array([0.5, 1.0, 0.25])}).axes
    np.testing.assert_array_equal(points(axes), [[1, 0.5], [2, 1], [3, 0.25]])


def test_pieces_of_text_are_no_formulas():
    neighbours = plots.plot_neighbours({"$x$": (["$y$", "cow"], [0.7, 0.5])}).axes[0]
    for text in (neighbours.title, *neighbours.get_yticklabels()):
        assert not text.get_parse_math()


def test_calibration_beside_the_diagonal():
    found = Calibration(np.array([0.3, 0.9]), np.array([0.5, 0.8]), np.array([1, 3]))
    figure = plots.plot_calibration({"a": found})
    np.testing.assert_array_equal(points(figure.axes[0]), [[0, 0], [1, 1]])
    np.testing.assert_array_equal(points(figure.axes[0], 1), [[0.3, 0.5], [0.9, 0.8]])
    assert figure.axes[0].get_xlim() == (0, 1)
    assert figure.axes[0].get_ylim() == (0, 1.02)
    assert figure.legends[0].get_texts()[0].get_text() == "a (error 0.125)"


def test_lengths():
    (axes,) = plots.plot_lengths({"a": ([3.0, 7.5], [40.0, 30.0], [10, 12])}).axes
    np.testing.assert_array_equal(points(axes), [[3, 40], [7.5, 30]])
    assert "10 to 12 sentences" in axes.lines[0].get_label()


def test_neighbours_best_first():
    figure = plots.plot_neighbours({"a$b": (["cat", "cow"], [0.7, 0.5]), "cat": (["dog"], [0.7])})
    first, second = figure.axes
    assert [bar.get_width() for bar in first.patches] == [0.7, 0.5]
    assert [label.get_text() for label in first.get_yticklabels()] == ["cat", "cow"]
    assert first.yaxis_inverted()
    assert (first.get_title(), second.get_title()) == ("a$b", "cat")


def test_norms_without_activations():
    (axes,) = plots.plot_norms({"embedding": 3.0, "encoder.layers_0": 0.5}, {}).axes
    np.testing.assert_array_equal(points(axes), [[3, 0], [0.5, 1]])
    assert axes.get_xscale() == "log"


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["runs/a", "runs/b/"], ["a", "b"]),
        (["x/run", "y/run"], ["x/run", "y/run"]),
        (["one"], ["one"]),
        (["same", "same"], ["same", "same"]),
    ],
)
def test_run_names_are_the_shortest_distinct_ones(folders, names):
    assert plots.name_runs(folders) == names
