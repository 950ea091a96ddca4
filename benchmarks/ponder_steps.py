"""Draws the steps of a Universal Transformer with halting: python -m benchmarks.ponder_steps --workdir=RUN

The figure has a panel for each source sentence and each translation. The bar above a token is as high as the
number of steps after which the token halted. Prints the mean number of steps of both sides as JSON.
"""

import json
from typing import Any, NamedTuple

import numpy as np
from absl import app, flags
from matplotlib.figure import Figure

from tfm import interpret
from tfm.data.sources.opening import read_sides
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID
from tfm.visualize.figures import SHARP_DPI, save
from tfm.visualize.plots import COLOURS, COLUMN, label_axes
from tfm.workdir import runs

FLAGS = flags.FLAGS
flags.DEFINE_string("workdir", None, "Run folder.", required=True)
flags.DEFINE_string("figure", "", "PNG file of the figure; empty draws none.")
flags.DEFINE_string("split", "pronoun", "Split of the sentences.")
flags.DEFINE_integer("sentences", 3, "Sentences to draw.", lower_bound=1)


class Steps(NamedTuple):
    """The pieces of a text, and the number of steps after which each of them halted."""

    pieces: list[str]
    steps: np.ndarray


def count_steps(task: Any, params: Any, source: str, target: str) -> tuple[Steps, Steps]:
    """Returns the steps of the tokens of a source and of the tokens that the decoder reads."""
    source_ids, target_ids = (task.tokenizer.encode([text])[0] for text in (source, target))
    inputs, targets = np.array([[*source_ids, EOS_ID]]), np.array([[BOS_ID, *target_ids]])
    names = ["encoder.output.steps", "decoder.output.steps"]
    _, reads = interpret.run(task.model, params, inputs, targets, read=names)
    sides = []
    for name, ids in zip(names, (inputs, targets), strict=True):
        pieces = task.tokenizer.pieces(ids[0].tolist())
        sides.append(Steps(pieces, np.asarray(reads[name][0])))
    return sides[0], sides[1]


def draw(rows: list[tuple[Steps, Steps]], path: str) -> None:
    """Draws a bar for each token of each sentence."""
    sides = [(name, side) for row in rows for name, side in zip(("encoder", "decoder"), row, strict=True)]
    figure = Figure(figsize=(COLUMN, 1.15 * len(sides)), layout="constrained")
    most = max(side.steps.max() for _, side in sides)
    for axes, (name, side) in zip(figure.subplots(len(sides), 1), sides, strict=True):
        axes.bar(range(len(side.pieces)), side.steps, color=COLOURS[name == "decoder"])
        label_axes(axes, "", f"{name}\nsteps")
        axes.set_xticks(range(len(side.pieces)), side.pieces, rotation=60, ha="right", rotation_mode="anchor")
        axes.set(ylim=(0, most + 0.2), yticks=range(most + 1), axisbelow=True)
    save(figure, path, dpi=SHARP_DPI)


def main(_: list[str]) -> None:
    run = runs.load(FLAGS.workdir)
    sources, targets = read_sides(run.task.config.data, FLAGS.split)
    pairs = list(zip(sources, targets, strict=True))[: FLAGS.sentences]
    rows = [count_steps(run.task, run.variables["params"], *pair) for pair in pairs]
    means = [
        float(np.concatenate([side.steps for side in sides]).mean()) for sides in zip(*rows, strict=True)
    ]
    print(json.dumps(dict(zip(("encoder", "decoder"), means, strict=True))))
    if FLAGS.figure:
        draw(rows, FLAGS.figure)


if __name__ == "__main__":
    app.run(main)
