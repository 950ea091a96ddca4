"""Scores runs of configs/algorithms.py: python -m benchmarks.algorithms --workdir=runs/copy --workdir=...

Decodes sources of 10, 20 and 40 symbols greedily. Prints one JSON line for each run and split: "exact" is the
share of outputs without a mistake, "symbols" is the share of right symbols.
"""

import json

import numpy as np
from absl import app, flags

from tfm.data.sources.opening import read_sides
from tfm.systems.universal.algorithms import LENGTHS
from tfm.workdir import runs

FLAGS = flags.FLAGS
flags.DEFINE_multi_string("workdir", [], "Run folders.")


def count_right(output: str, target: str) -> float:
    """Returns the share of the symbols of a target that an output has at the same place."""
    symbols = target.split()
    return sum(a == b for a, b in zip(output.split(), symbols, strict=False)) / len(symbols)


def main(_: list[str]) -> None:
    for workdir in FLAGS.workdir:
        run = runs.load(workdir)
        for split, length in LENGTHS.items():
            sources, targets = read_sides(run.task.config.data, split)
            outputs = run.task.translate(run.variables["params"], sources)
            exact = np.mean([output == target for output, target in zip(outputs, targets, strict=True)])
            symbols = np.mean([count_right(*pair) for pair in zip(outputs, targets, strict=True)])
            row = {
                "run": workdir,
                "length": length,
                "exact": float(exact),
                "symbols": round(float(symbols), 4),
            }
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    app.run(main)
