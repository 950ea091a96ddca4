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
import sys
import time

import jax
from absl import flags

from tfm import tasks
from tfm.commands import cli, config_flag
from tfm.training.loop import train
from tfm.training.run_log import read_metrics
from tfm.training.setup import Setup

BATCHES = 8


def define_flags(values, argv):
    """The flags of the benchmark."""
    cli.define_new_run(values, argv)
    flags.DEFINE_integer("rounds", 3, "How often the two take turns.", 1, flag_values=values)
    text = "Steps of each turn that are timed, and of a line of the log."
    flags.DEFINE_integer("steps", 100, text, 2, flag_values=values)


def main(argv):
    arguments, _ = cli.parse(__name__, argv, define_flags)
    chosen, workdir, steps = cli.read_config(arguments), arguments.workdir, arguments.steps
    os.makedirs(workdir)
    task = tasks.find(chosen.task).create(chosen, workdir)
    bare = bare_step(task, chosen.training, steps)
    rates = []
    for turn in range(1, arguments.rounds + 1):
        rates.append((whole_loop(task, chosen.training, workdir, turn, steps), bare()))
    loop, step = (statistics.median(column) for column in zip(*rates, strict=True))
    print(
        json.dumps(
            {
                "config": config_flag.value_of("config", argv),
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
    cli.run(main, sys.argv[1:])
