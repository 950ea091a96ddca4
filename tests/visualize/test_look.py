"""The look of every kind of figure as text: sizes, fonts, colours, limits and numbers.

`python -m tests.visualize.test_look` writes look.txt after an intended change. Look at the figures first.
"""

import json
import pathlib

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import Colormap
from matplotlib.ticker import FixedLocator

from benchmarks import guide_figures
from tfm.interpret.observation import image_track
from tfm.visualize import figures, lines, plots
from tfm.visualize.figures import Axis, Panels

FILE = pathlib.Path(__file__).with_name("look.txt")
# A line of training and a line of validation for each step, as in metrics.jsonl.
ROWS = [
    {"step": step, "time": 0.0, **scores}
    for step in (1, 2, 3)
    for scores in ({"train/nll": 5.0 / step}, {"validation/bleu": 3.0 * step})
]
PROPERTIES = (
    *("text", "fontsize", "fontweight", "ha", "va", "rotation", "parse_math", "position"),
    *("xydata", "color", "facecolor", "linestyle", "linewidth", "marker", "markersize", "alpha"),
    *("array", "cmap", "clim", "interpolation", "extent", "xy", "width", "height"),
)
OF_AXES = ("xlim", "ylim", "xscale", "yscale", "aspect")


def make_panels(shape):
    """Returns panels of fixed numbers for a shape [layers, heads, L, M]."""
    weights = np.arange(np.prod(shape)).reshape(shape) / np.prod(shape)
    queries, keys = (Axis(f"axis {n}", [f"word{'x' * 40 * i}" for i in range(n)]) for n in shape[2:])
    titles = [[f"layer {i}, head {j}" for j in range(shape[1])] for i in range(shape[0])]
    return Panels(weights, queries, keys, titles, "unit")


def draw_all(monkeypatch):
    """Yields (name, figure) for every function of the package that draws a figure."""
    mask, logits = np.tril(np.ones((2, 2), bool)), np.array([[1.0, 2], [3, 4]])
    many = [{"step": step, "train/nll": float(step)} for step in range(31)]
    runs = {"a": ROWS, "b": ROWS[:4], "c": [], "many": many}
    yield "curves", plots.plot_curves(runs, ["train/nll", "validation/bleu", "train/nll"])
    yield (
        "positions",
        guide_figures.plot_positions({"interleaved": np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])}),
    )
    yield "masks", guide_figures.plot_masks({"causal": mask}, logits, {"causal": np.eye(2)})
    yield "schedules", guide_figures.plot_schedules({"constant": np.array([0.5, 1.0, 0.25])})

    drawn = []
    for module in (figures, lines):
        monkeypatch.setattr(module, "save", lambda figure, path, dpi=figures.DPI: drawn.append((figure, dpi)))
    figures.draw_attention(make_panels((2, 3, 2, 4)), "title " * 100, "x.png")
    for elements in (5, 4):  # with and without a class token
        track = image_track(np.linspace(-1, 1, 16).reshape(4, 4, 1), elements)
        panels = make_panels((1, 2, elements, elements))._replace(queries=Axis("query", track.labels))
        figures.draw_patches(panels, track, "title", "x.png")
    lines.draw_lines([make_panels((1, 1, 2, 2)), make_panels((1, 1, 3, 3))], "word", "title", "x.png")
    names = ("attention", "patches", "patches without class token", "lines")
    for name, (figure, dpi) in zip(names, drawn, strict=True):
        yield f"{name}, {dpi} dpi", figure


def show(value):
    """Returns a value as text, with numbers of four digits."""
    if isinstance(value, Colormap):
        return value.name
    if isinstance(value, str | bool | None):
        return repr(value)
    rounded = np.ma.filled(np.ma.asarray(value, float), np.nan).tolist()
    return json.dumps(json.loads(json.dumps(rounded), parse_float=lambda text: float(f"{float(text):.4g}")))


def describe_artist(artist):
    found = {name: getattr(artist, f"get_{name}")() for name in PROPERTIES if hasattr(artist, f"get_{name}")}
    return f"{type(artist).__name__} " + " ".join(f"{name}={show(value)}" for name, value in found.items())


def describe_axes(axes):
    yield " ".join(f"{name}={show(getattr(axes, f'get_{name}')())}" for name in OF_AXES)
    yield f"shown={axes.axison} place={show(axes.get_position().bounds)}"
    for axis in (axes.xaxis, axes.yaxis):
        style = {which: axis.get_tick_params(which) for which in ("major", "minor")}
        yield f"ticks {show(axis.get_ticklocs())} {json.dumps(style, sort_keys=True, default=str)}"
        if isinstance(axis.get_major_locator(), FixedLocator):  # Matplotlib chooses the numbers of other axes
            yield from map(describe_artist, axis.get_ticklabels())
    for artist in (axes.title, axes.xaxis.label, axes.yaxis.label):
        yield describe_artist(artist)
    for artist in (*axes.lines, *axes.images, *axes.patches, *axes.texts):
        yield describe_artist(artist)


def text(monkeypatch):
    """Returns the description of all figures, a line for each artist."""
    found = [f"matplotlib {matplotlib.__version__}"]
    for name, figure in draw_all(monkeypatch):
        layout = type(figure.get_layout_engine()).__name__
        found.append(f"# {name}: {show(figure.get_size_inches())} {layout}")
        found += map(describe_artist, figure.texts)
        for legend in figure.legends:
            found.append(f"legend frame={legend.get_frame_on()}")
            found += map(describe_artist, (*legend.get_texts(), *legend.get_lines()))
        for axes in figure.axes:
            found += describe_axes(axes)
    return "\n".join([*found, ""])


@pytest.mark.long
def test_every_figure_looks_as_in_the_file(monkeypatch):
    expected = FILE.read_text(encoding="utf-8")
    if not expected.startswith(f"matplotlib {matplotlib.__version__}\n"):
        pytest.skip(f"look.txt was written with another version: {expected.partition(chr(10))[0]}")
    assert text(monkeypatch) == expected


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        FILE.write_text(text(patch), encoding="utf-8")
