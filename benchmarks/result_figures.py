"""Draws the figures of docs/results.md: python -m benchmarks.result_figures

Each number is a row of benchmarks/results.tsv, together with its source. The figures are SVG files without a
background. Their colours are readable on white and on black, and the grey of the text becomes
lighter if the reader prefers dark pages. Also prints the means over seeds with their 95 % intervals.
"""

import csv
import io
import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
from absl import app, flags
from matplotlib.figure import Figure

from tfm.sweep.table import mean_interval
from tfm.visualize.plots import COLOURS

FLAGS = flags.FLAGS
flags.DEFINE_string("folder", "docs/figures", "Folder of the figures.")
TABLE = pathlib.Path(__file__).with_name("results.tsv")
WIDTH = 390 / 72  # inches of a figure, so that a unit of the SVG is a pixel of a phone
TEXT = 12  # points of all text
GREY, LIGHT_GREY = "#757575", "#9e9e9e"  # of text on light and on dark pages
BLUE, RED, GREEN = COLOURS[:3]
OTHER = "#9a9a9a"  # of peers
VERDICTS = {"as in the paper": BLUE, "the other way": RED, "unclear": OTHER}
LINES = tuple(
    {"color": colour, "linestyle": dashes, "marker": marker, "linewidth": 2, "markersize": 5}
    for colour, dashes, marker in zip((BLUE, RED, GREEN), ("-", "--", "-."), "os^", strict=True)
)
DARK_STYLE = (
    f'<style>@media (prefers-color-scheme: dark) {{ [style*="fill: {GREY}"] '
    f"{{ fill: {LIGHT_GREY} !important }} }}</style>"
)
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tfm",
    "font.family": "sans-serif",
    "font.size": TEXT,
    "axes.titlesize": TEXT,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.titlecolor": GREY,
    "text.color": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "grid.color": GREY,
    "grid.alpha": 0.3,
}


class Row(NamedTuple):
    """A measurement.

    Attributes:
      chart: name of the panel that shows it. The rows of a chart that begins with "table " are not drawn.
      series: name of the program, model or score.
      at: seed, turn or step of the measurement; for Table 3, the paper's difference.
      value: the number.
      interval: half of its 95 % interval, if the source gives one.
      source: where the number was measured or published first.
    """

    chart: str
    series: str
    at: float
    value: float
    interval: float
    source: str


def read_rows(path: pathlib.Path = TABLE) -> list[Row]:
    """Reads the table of all measurements."""
    with open(path, encoding="utf-8", newline="") as file:
        return [
            Row(
                row["chart"],
                row["series"],
                float(row["at"]),
                float(row["value"]),
                float(row["interval"] or "nan"),
                row["source"],
            )
            for row in csv.DictReader(file, delimiter="\t")
        ]


def group_series(rows: Sequence[Row], chart: str) -> dict[str, list[Row]]:
    """Returns {series: rows} of a chart in the order of the table."""
    series: dict[str, list[Row]] = {}
    for row in rows:
        if row.chart == chart:
            series.setdefault(row.series, []).append(row)
    return series


def draw_seeds(rows: Sequence[Row]) -> Figure:
    """Draws a dot for each seed, and the interval of their mean, with a line for each score."""
    charts = {"seeds quickstart": "quickstart", "seeds pictures": "pictures", "seeds multi30k": "Multi30k"}
    series = [group_series(rows, chart) for chart in charts]
    figure, panels = make_panels([len(scores) for scores in series], row_height=0.38)
    for axes, (title, scores) in zip(panels, zip(charts.values(), series, strict=True), strict=True):
        axes.set_title(title)
        for line, measured in enumerate(scores.values()):
            values = [row.value for row in measured]
            if len(values) == 1:  # a published score
                axes.plot(values, [line], "D", color=RED, markersize=7)
                continue
            mean, half = mean_interval(values)
            axes.errorbar(mean, line, xerr=half, color=BLUE, elinewidth=7, alpha=0.35)
            axes.plot(values, [line] * len(values), "o", color=BLUE, markersize=5)
        name_lines(axes, list(scores))
    panels[-1].set_xlabel("BLEU or per cent")
    return figure


def draw_curves(rows: Sequence[Row]) -> Figure:
    """Draws the training loss of the quick start with several seeds, one line for each."""
    figure, (axes,) = make_panels([1], row_height=2.8)
    for points in group_series(rows, "quickstart curves").values():
        axes.plot([row.at for row in points], [row.value for row in points], color=BLUE, alpha=0.6)
    axes.set(xlabel="training steps", ylabel="loss (nats per token)", ylim=(0, None))
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.grid()
    return figure


def draw_language_models(rows: Sequence[Row]) -> Figure:
    """Draws the bits per character of three networks while they learn, and of n-grams as a line."""
    figure, (axes,) = make_panels([1], row_height=3.3)
    series = group_series(rows, "language models")
    (ngrams,) = series.pop("Kneser-Ney 8-grams")
    for style, (name, points) in zip(LINES, series.items(), strict=False):
        axes.plot([row.at for row in points], [row.value for row in points], label=name, **style)
    axes.axhline(ngrams.value, color=OTHER, linestyle=(0, (2, 2)), linewidth=2, label=ngrams.series)
    axes.set(xlabel="training steps", ylabel="bits per character, validation", ylim=(1.6, 2.15))
    axes.set_xticks([400, 800, 1200, 1600])
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.grid()
    axes.legend(frameon=False, loc="upper right")
    return figure


def draw_table3(rows: Sequence[Row]) -> Figure:
    """Draws the differences of the perplexity from the base model, ours with intervals and the paper's."""
    series = group_series(rows, "paper table 3")
    figure, (axes,) = make_panels([len(series)], row_height=0.34)
    labels: dict[str, Any] = {}
    for line, (row,) in enumerate(series.values()):
        verdict = judge_direction(row)
        style = {"color": VERDICTS[verdict], "elinewidth": 2, "capsize": 3, "markersize": 6}
        labels[verdict] = axes.errorbar(row.value, line, xerr=row.interval, fmt="o", **style)
        (labels["the paper"],) = axes.plot(row.at, line, "x", color=GREEN, markersize=7, markeredgewidth=2)
    axes.axvline(0, color=GREY, linewidth=1)
    axes.set_xscale("symlog", linthresh=1, linscale=1)
    axes.set_xticks([-3, -1, 0, 1, 3, 10], ["-3", "-1", "0", "+1", "+3", "+10"])
    axes.set_xlim(-5, 12)
    axes.set_xlabel("difference of the perplexity")
    name_lines(axes, list(series))
    figure.legend(list(labels.values()), list(labels), loc="outside lower center", ncols=2, frameon=False)
    return figure


def judge_direction(row: Row) -> str:
    """Returns whether a difference has the sign of the paper's difference, `row.at`."""
    if abs(row.value) <= row.interval:
        return "unclear"
    return "as in the paper" if row.value * row.at > 0 else "the other way"


def draw_cpu(rows: Sequence[Row]) -> Figure:
    """Draws how many tokens a second each program trains on a CPU."""
    charts = {"cpu float32": "float32", "cpu bfloat16": "bfloat16"}
    return draw_bars(rows, charts, "tokens a second, base model", "{:,.0f}")


def draw_gpu_training(rows: Sequence[Row]) -> Figure:
    """Draws how many tokens a second each program trains on a GPU."""
    charts = {"gpu base": "base model", "gpu big": "big model"}
    tokens = 64 * (256 + 256)
    return draw_bars(rows, charts, "million tokens a second", "{:.2f}", lambda ms: tokens / (1000 * ms))


def draw_gpu_decoding(rows: Sequence[Row]) -> Figure:
    """Draws how many sentences a second each program translates on a GPU."""
    charts = {"gpu greedy": "greedy search", "gpu beam 4": "beam 4"}
    sentences = 64
    return draw_bars(rows, charts, "sentences a second", "{:,.0f}", lambda ms: 1000 * sentences / ms)


def draw_bars(
    rows: Sequence[Row],
    charts: Mapping[str, str],
    label: str,
    number: str,
    convert: Callable[[float], float] = float,
) -> Figure:
    """Draws the median of each series as a bar with a number, and each measurement as a dot.

    Args:
      rows: all measurements.
      charts: {name in the table: title of its panel}.
      label: title of the axis.
      number: format of the numbers next to the bars.
      convert: function from a value of the table to the axis.
    """
    series = {chart: group_series(rows, chart) for chart in charts}
    figure, panels = make_panels(
        [len(programs) for programs in series.values()], row_height=0.45, sharex=True
    )
    for axes, (chart, programs) in zip(panels, series.items(), strict=True):
        for line, (program, measured) in enumerate(programs.items()):
            values = [convert(row.value) for row in measured]
            median = statistics.median(values)
            colour = BLUE if program == "tfm" else OTHER
            axes.barh(line, median, height=0.62, color=colour, alpha=0.55)
            axes.plot(values, [line] * len(values), "o", color=colour, markersize=4)
            axes.annotate(
                number.format(median), (max(values), line), (8, 0), textcoords="offset points", va="center"
            )
        axes.set_title(charts[chart])
        name_lines(axes, list(programs))
        axes.margins(x=0.16)
    panels[-1].set_xlabel(label)
    panels[-1].xaxis.set_major_formatter("{x:,g}")
    return figure


def make_panels(lines: Sequence[int], row_height: float, sharex: bool = False) -> tuple[Figure, list[Any]]:
    """Returns a figure with panels one below the other, for `lines` lines each, and their axes."""
    height = row_height * sum(lines) + 0.75 + 0.45 * (len(lines) - 1)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    panels = figure.subplots(len(lines), 1, squeeze=False, height_ratios=lines, sharex=sharex)
    return figure, panels.ravel().tolist()


def name_lines(axes: Any, names: Sequence[str]) -> None:
    """Writes a name for each line of a panel, the first at the top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.set_axisbelow(True)


FIGURES: Mapping[str, Callable[[Sequence[Row]], Figure]] = {
    "results_seeds": draw_seeds,
    "results_curves": draw_curves,
    "results_language_models": draw_language_models,
    "results_table3": draw_table3,
    "results_cpu": draw_cpu,
    "results_gpu_training": draw_gpu_training,
    "results_gpu_decoding": draw_gpu_decoding,
}


def save(figure: Figure, path: pathlib.Path) -> None:
    """Writes a figure as SVG without a background, with the style for dark pages."""
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    path.write_text(text.getvalue().replace("<defs>", f"{DARK_STYLE}\n <defs>", 1), encoding="utf-8")


def describe_seeds(rows: Sequence[Row]) -> list[str]:
    """Returns a line for each score that was measured with several seeds: its mean and interval."""
    charts = dict.fromkeys(row.chart for row in rows if row.chart.startswith(("seeds ", "table ")))
    series = [(name, measured) for chart in charts for name, measured in group_series(rows, chart).items()]
    return [
        f"{name}: {mean_interval([row.value for row in measured]).format()}"
        for name, measured in series
        if len(measured) > 1
    ]


def main(_: Sequence[str]) -> None:
    """Draws all figures and prints the intervals."""
    rows = read_rows()
    with matplotlib.rc_context(STYLE):
        for name, draw in FIGURES.items():
            save(draw(rows), pathlib.Path(FLAGS.folder, f"{name}.svg"))
    print(*describe_seeds(rows), sep="\n")


if __name__ == "__main__":
    app.run(main)
