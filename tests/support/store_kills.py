"""Kills and restarts a real training process whose run lives in a store.

Compares the run with an unbroken run in a local folder.

python -m tests.support.store_kills --kills=30 --seed=0 --protocol=s3 [--share=0.05]
"""

import argparse
import collections
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

from tests.support import kills, processes
from tests.support.paths import ROOT
from tests.support.stores import FaultProxy, run_store
from tests.support.tiny import make_config, write_config_file, write_corpus
from tfm.checkpoints import manifest
from tfm.io.remote import RemoteFolder
from tfm.workdir.mirror import STEP_OBJECT, Mirror, is_any

# A run in the product waits for a minute for a sign of life, and repeats requests that hang for a minute.
PROGRAM = (
    "import os; from tfm.io import remote; from tfm.workdir import owner, working_copies; "
    "owner.BEAT_SECONDS, owner.SILENT_SECONDS, remote.READ_SECONDS = 2.0, 8.0, 4; "
    "working_copies.TRAINING_PATIENCE = float(os.environ.get('TFM_TEST_PATIENCE', '120')); "
    "from tfm.commands.main import main; main()"
)
AIMS = ("start", "training", "upload")


def start(command, *arguments, cache, **options):
    """Starts a command with its working copies below a folder, and returns its process."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(cache)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    program = [sys.executable, "-c", PROGRAM, command, *map(str, arguments)]
    return subprocess.Popen(program, cwd=ROOT, env=environment | options.pop("environment", {}), **pipes)


def finish(process):
    """Returns the errors of a process that must succeed."""
    output, errors = processes.finish(process)
    assert process.returncode == 0, (output + errors)[-3000:]
    return errors


def is_uploading(folder):
    """Returns whether a checkpoint in a store is incomplete."""
    names = folder.sizes("checkpoints")
    steps = {match[1] for name in names if (match := STEP_OBJECT.fullmatch(name))}
    return any(f"{step}/{manifest.FILE}" not in names for step in steps)


def kill(process, aim, chance, folder):
    """Kills a process when it probably does what `aim` says. Returns whether the run had not ended."""

    def has_ended():
        return process.poll() is not None

    def has_progress():
        return has_ended() or set(folder.sizes("checkpoints")) != before

    before = set(folder.sizes("checkpoints"))
    if aim == "start":
        time.sleep(chance.uniform(0.5, 15))
    else:
        processes.wait_until(has_progress, "objects of a checkpoint", process)
        if aim == "upload":
            processes.wait_until(lambda: has_ended() or is_uploading(folder), "an upload", process)
        else:
            time.sleep(chance.uniform(0, 4))
    process.kill()
    processes.finish(process)
    return process.returncode < 0


def download(url, folder):
    """Copies a run from a store into a local folder."""
    folder.mkdir()
    Mirror(RemoteFolder(url), str(folder)).pull(is_any)


def run_kills(url, folder, number, *, seed=0, steps=60, share=0.0, proxy: FaultProxy | None = None):
    """Trains with `number` kills, on one machine or another at random, and compares with the unbroken run.

    Returns:
      {what happened: how often}.
    """
    chance, count = random.Random(seed), collections.Counter()
    write_corpus(folder)
    settings = make_config(folder, steps=steps, ema_decay=0.9, **kills.SCHEDULE)
    training = ("train", f"--config={write_config_file(folder, settings)}", f"--workdir={url}")
    store = RemoteFolder(url)
    if proxy is not None:
        proxy.share = share
    while count["kills"] < number:
        machine = folder / f"machine{chance.randrange(2)}"
        aim = chance.choice(AIMS)
        fell = kill(start(*training, cache=machine), aim, chance, store)
        assert fell, "the run ended before all kills: increase --steps"
        count.update({"kills": 1, f"in {aim}": 1, f"on {machine.name}": 1, "incomplete": is_uploading(store)})
        print(f"kill {count['kills']}: {aim} on {machine.name}, objects {len(store.sizes())}", flush=True)
    finish(start(*training, cache=folder / "machine0"))
    if proxy is not None:
        proxy.share = 0.0
        count.update({f"fault {name}": times for name, times in proxy.faults.items()})
    assert not is_uploading(store)
    download(url, folder / "broken")
    finish(start(training[0], training[1], f"--workdir={folder / 'unbroken'}", cache=folder / "machine0"))
    kills.compare(folder / "unbroken", folder / "broken")
    return dict(count)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--protocol", choices=("gs", "s3"), default="s3")
    parser.add_argument("--share", type=float, default=0.05)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, run_store(arguments.protocol) as (url, proxy, _):
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(pathlib.Path(folder) / "compiled")
        options = {"seed": arguments.seed, "steps": arguments.steps, "share": arguments.share}
        print(run_kills(f"{url}/run", pathlib.Path(folder), arguments.kills, proxy=proxy, **options))


if __name__ == "__main__":
    main()
