"""The whole training loop against its bare step:

python -m benchmarks.loop --config=configs/quickstart.py --workdir=NEW_FOLDER

Trains as train.py does, with data, logging and checkpoints. In turn with that, runs the same compiled step on
batches that lie on the device already, and nothing else. Prints one JSON line: tokens/s of both, source and
target, and their ratio.
"""

import dataclasses
import json
import os
import statistics
import time

import jax

from tfm import tasks
from tfm.commands import console
from tfm.commands.command import command, option, options
from tfm.commands.options import NewRun
from tfm.training.run_log import read_metrics
from tfm.training.setup import Setup
from tfm.workdir.train import train

BATCHES = 8


@options
class Loop(NewRun):
    """The options of the benchmark."""

    rounds: int = option(3, "Number of turns of the two loops.", minimum=1)
    steps: int = option(100, "Timed steps of each turn, and between two lines of the log.", minimum=2)


@command
def main(options: Loop):
    """Runs the benchmark."""
    chosen, workdir, steps = options.config, options.workdir, options.steps
    os.makedirs(workdir)
    task = tasks.find(chosen.task).create(chosen, workdir)
    bare = bare_step(task, chosen.training, steps)
    rates = []
    for turn in range(1, options.rounds + 1):
        rates.append((whole_loop(task, chosen.training, workdir, turn, steps), bare()))
    loop, step = (statistics.median(column) for column in zip(*rates, strict=True))
    print(
        json.dumps(
            {
                "config": options.config_file,
                "loop_tokens_per_second": round(loop),
                "bare_tokens_per_second": round(step),
                "ratio": round(statistics.median(a / b for a, b in rates), 3),
                "rounds": [[round(rate) for rate in pair] for pair in rates],
            }
        )
    )


def whole_loop(task, training, workdir, turn, steps):
    """tokens/s of the second of two lines of a run: the first one includes the compilation."""
    length = 2 * steps
    config = dataclasses.replace(
        training,
        schedule="inverse_sqrt",  # without an end
        steps=turn * length,
        log_every=steps,
        eval_every=10**9,
        checkpoint_every=steps,
    )
    train(task, config, workdir)
    lines = [row for row in read_metrics(workdir) if "train/tokens_per_second" in row]
    return lines[-1]["train/tokens_per_second"]


def bare_step(task, training, steps):
    """A function that times steps steps, and returns their tokens/s."""
    setup = Setup(task, training)
    data = task.open_data()
    feed = data.train_batches(0)
    batches = [next(feed) for _ in range(BATCHES)]
    tokens = [data.count(batch) for batch in batches]
    placed = [setup.partitioner.place_batch(batch) for batch in batches]
    step = setup.partitioner.compile(setup.step, setup.state, setup.constant_shapes)
    state, metrics = step(setup.initialize(), placed[0], setup.constants)
    jax.block_until_ready(metrics)

    def timed():
        nonlocal state
        began = time.perf_counter()
        for turn in range(steps):
            state, metrics = step(state, placed[turn % BATCHES], setup.constants)
        jax.block_until_ready(metrics)
        seconds = time.perf_counter() - began
        return sum(tokens[turn % BATCHES] for turn in range(steps)) / seconds

    return timed


if __name__ == "__main__":
    console.run(main)
