"""Plots of several runs: tfm plot DIR [DIR ...]

  tfm plot DIR [DIR ...]           training and validation curves (or: curves DIR ...)
  tfm plot lengths DIR [DIR ...]   BLEU by length of the source, from the outputs of tfm evaluate

Writes curves.png or lengths.png, or the file of --output with the ending .png, .svg or .pdf.
"""

import functools
import os
from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from tfm.commands import compare
from tfm.commands.command import command
from tfm.commands.options import Plot
from tfm.errors import UserError
from tfm.evaluation import translation_metrics
from tfm.training.run_log import read_metrics
from tfm.visualize import measures, plots
from tfm.visualize.figures import find_format, save

DPI = 200  # high, because figures are only as wide as a column of text


def draw_curves(options: Plot, folders: Sequence[str]) -> Figure:
    """Draws the metrics of --metric for several runs.

    The default metrics are the training loss and all metrics of the validation split.
    """
    rows = [read_metrics(folder) for folder in folders]
    logged = sorted({name for each in rows for row in each for name in row if "/" in name})
    validation = [name for name in logged if name.startswith("validation/")]
    metrics = list(options.metrics) or ["train/nll" if "train/nll" in logged else "train/loss", *validation]
    missing = [name for name in metrics if name not in logged]
    if missing:
        known = ", ".join(logged) or "none"
        raise UserError(f"No run has logged the metric {missing[0]!r}; logged are {known}.")
    return plots.plot_curves(dict(zip(plots.name_runs(folders), rows, strict=True)), metrics)


def draw_lengths(options: Plot, folders: Sequence[str]) -> Figure:
    """Draws BLEU by the number of words in the source, from the hypotheses that tfm evaluate wrote."""
    groups = []
    for folder in folders:
        system = compare.read_system(folder, options.name, options.split, "tfm plot lengths")
        texts = (system.sources, system.hypotheses, system.references)
        groups.append(measures.score_by_length(*texts, functools.partial(_bleu, system.tokenizer)))
    return plots.plot_lengths(dict(zip(plots.name_runs(folders), groups, strict=True)))


def _bleu(tokenizer: str, hypotheses: Sequence[str], references: Sequence[str]) -> float:
    return translation_metrics.bleu(hypotheses, references, tokenizer).value


KINDS: dict[str, Callable[[Plot, Sequence[str]], Figure]] = {"curves": draw_curves, "lengths": draw_lengths}


@command
def main(options: Plot) -> None:
    """Plots."""
    kind = options.kind
    folders = options.folders
    if kind not in KINDS:
        folders = (kind, *folders)
        kind = "curves"
    if not folders:
        raise UserError(f"Expected the folder of a run after tfm plot {kind}, got nothing.")
    paths = list(map(os.path.realpath, folders))
    if len(set(paths)) < len(paths):
        raise UserError(f"Expected different folders, got one of {', '.join(folders)} twice.")
    path = options.output or f"{kind}.png"
    find_format(path)  # checked here, because scoring takes a while
    save(KINDS[kind](options, folders), path, DPI)
    print(path)
