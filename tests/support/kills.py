"""Functions that kill and restart a real training process and compare it with the unbroken run.

python -m tests.support.kills --kills=30 --seed=0 [--signal=SIGTERM]
"""

import argparse
import collections
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

from tests.support import processes
from tests.support.comparison import assert_trees_equal
from tests.support.paths import ROOT
from tests.support.tiny import make_config, train_run, write_config_file, write_corpus
from tfm.testing.tasks import rows_without_times
from tfm.training.run_log import METRICS_FILE, RESUMED
from tfm.workdir import runs

SCHEDULE = {
    "log_every": 5,
    "checkpoint_every": 4,
    "eval_every": 10,
    "keep": 3,
}  # logged and saved steps differ
PHASES = ("start", "training", "checkpoint", "evaluation")


def command(config, workdir):
    """Starts train.py and returns its process."""
    arguments = [sys.executable, "train.py", f"--config={config}", f"--workdir={workdir}"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(arguments, cwd=ROOT, env=environment, stderr=subprocess.PIPE)


def finish(config, workdir, seconds=processes.LIMIT):
    """Runs train.py to its end and asserts that it succeeds."""
    process = command(config, workdir)
    _, errors = processes.finish(process, seconds)
    assert process.returncode == 0, errors.decode()[-3000:]


def kill(config, workdir, aim, chance, number=signal.SIGKILL):
    """Starts train.py and sends it a signal when it is probably in the phase `aim`.

    Returns:
      The phase in which the signal arrived, according to the files, or None if the run had already ended.
    """
    rows = len(lines(workdir))
    process = command(config, workdir)
    if aim == "start":
        time.sleep(chance.uniform(0.5, 8))
    else:
        more = rows + chance.randint(1, 6)

        def has_ended():  # A short run may end before the kill.
            return process.poll() is not None

        def has_rows():
            return has_ended() or len(lines(workdir)) >= more

        processes.wait_until(has_rows, "more rows of metrics", process)
        if aim != "training":
            processes.wait_until(lambda: has_ended() or aim in phase(workdir, rows), aim, process)
        time.sleep(chance.uniform(0, 0.03))
    process.send_signal(number)
    _, errors = processes.finish(process)
    assert process.returncode in (0, -number, 128 + number), errors.decode()[-3000:]
    return None if process.returncode == 0 else phase(workdir, rows)


def phase(workdir, rows_before):
    """Returns what the files say about a process that began with `rows_before` rows, joined by "+"."""
    there = lines(workdir)
    if len(there) <= rows_before:
        return "start"
    # An evaluation begins after the row of its step, and ends with its own row.
    evaluates = there[-1]["step"] % SCHEDULE["eval_every"] == 0 and "train/loss" in there[-1]
    writes = any(pathlib.Path(workdir).glob("checkpoints/*orbax-checkpoint-tmp*"))
    return "+".join(["checkpoint"] * writes + ["evaluation"] * evaluates) or "training"


def lines(workdir):
    """Returns the complete rows of the metrics so far, except the rows of starts."""
    path = pathlib.Path(workdir) / METRICS_FILE
    if not path.exists():
        return []
    whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("}\n")]
    return [row for row in map(json.loads, whole) if RESUMED not in row]


def compare(unbroken, broken):
    """Asserts that two runs have the same rows, checkpoints, best checkpoint and parameters, bit for bit."""
    assert rows_without_times(unbroken) == rows_without_times(broken)
    for which in ("best", "last"):
        one, other = (runs.load(str(workdir), checkpoint=which) for workdir in (unbroken, broken))
        assert one.steps == other.steps
        assert_trees_equal(one.params, other.params)
    names = (
        {path.name for path in pathlib.Path(workdir, "checkpoints").iterdir()}
        for workdir in (unbroken, broken)
    )
    assert len(set(map(frozenset, names))) == 1


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--signal", type=signal.Signals.__getitem__, default=signal.SIGKILL)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / "compiled")
        write_corpus(folder)
        settings = make_config(folder, steps=arguments.steps, ema_decay=0.9, **SCHEDULE)
        config = write_config_file(folder, settings)
        fell = collections.Counter()
        while fell.total() < arguments.kills:
            aim = chance.choice(PHASES)
            found = kill(config, folder / "broken", aim, chance, arguments.signal)
            assert found, "the run ended before all kills: increase --steps"
            fell[found] += 1
            rows = len(lines(folder / "broken"))
            print(f"kill {fell.total()}: planned in {aim}, arrived in {found}, {rows} rows")
        finish(config, folder / "broken", seconds=3600)
        train_run(settings, folder / "unbroken")
        compare(folder / "unbroken", folder / "broken")
    print(f"{fell.total()} kills, {dict(fell)}: {arguments.steps} steps equal the unbroken run bit for bit")


if __name__ == "__main__":
    main()
