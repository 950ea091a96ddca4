"""The worth of pretraining: python -m benchmarks.bert_curve --pretrained=runs/bert_toy --folder=runs/curve

Fine-tunes BERT on the gender and the case of German nouns (configs/bert_nouns.py) with several numbers of
labelled sentences, once from the parameters of a run of configs/bert_toy.py and once from random parameters
with the same tokenizer. Runs that the folder already has are not repeated. Prints a JSON line for each run,
and draws the accuracies on the test split as FOLDER/bert_curve.png.
"""

import json
import os
import subprocess
import sys

from absl import app, flags
from matplotlib.figure import Figure

from tfm.visualize.figures import SHARP_DPI, save
from tfm.visualize.plots import COLUMN, add_legend, plot_lines

FLAGS = flags.FLAGS
flags.DEFINE_string("pretrained", None, "Folder of the pretrained run.", required=True)
flags.DEFINE_string("folder", None, "Folder of all runs and of the figure.", required=True)
flags.DEFINE_list("sentences", ["100", "300", "1000", "5000"], "Numbers of labelled sentences.")
flags.DEFINE_list("starts", ["random", "pretrained"], "Initial parameters.")
flags.DEFINE_list("arguments", [], "Further arguments of each training.")
SCORES = "test.labels.scores.json"


def run(*arguments):
    """Runs a command of tfm."""
    subprocess.run([sys.executable, "-m", "tfm", *arguments], check=True, stdout=sys.stderr)


def measure(start, sentences):
    """Returns the accuracy of a run on the test split in per cent. Trains and evaluates if necessary."""
    workdir = os.path.join(FLAGS.folder, f"{start}_{sentences}")
    if not os.path.exists(os.path.join(workdir, SCORES)):
        tokenizer = os.path.join(FLAGS.pretrained, "vocabulary.model")
        warm_start = [f"--warm_start={FLAGS.pretrained}", "--warm_start_map=*=*"]
        run(
            "train",
            "--config=configs/bert_nouns.py",
            f"--workdir={workdir}",
            f"--config.data.tokenizer={tokenizer}",
            f"--config.data.train=train[:{sentences}]",
            *(warm_start if start == "pretrained" else []),
            *FLAGS.arguments,
        )
        run("evaluate", f"--workdir={workdir}")
    with open(os.path.join(workdir, SCORES), encoding="utf-8") as file:
        return json.load(file)["scores"][0]["value"]


def draw(curves, path):
    """Draws {start: {number of sentences: accuracy}}."""
    figure = Figure(figsize=(COLUMN, 3), layout="constrained")
    axes = figure.subplots()
    lines = {f"{start} parameters": (list(values), list(values.values())) for start, values in curves.items()}
    drawn = plot_lines(axes, lines, "labelled sentences", "nouns with right gender and case, %")
    axes.set_xscale("log")
    numbers = sorted({number for values in curves.values() for number in values})
    axes.set_xticks(numbers, list(map("{:,}".format, numbers)), minor=False)
    axes.minorticks_off()
    add_legend(figure, drawn)
    save(figure, path, dpi=SHARP_DPI)


def main(_):
    """Measures all runs and draws the curves."""
    curves = {start: {} for start in FLAGS.starts}
    for start in curves:
        for sentences in map(int, FLAGS.sentences):
            curves[start][sentences] = measure(start, sentences)
            line = {"start": start, "sentences": sentences, "accuracy": curves[start][sentences]}
            print(json.dumps(line), flush=True)
    draw(curves, os.path.join(FLAGS.folder, "bert_curve.png"))


if __name__ == "__main__":
    app.run(main)
