"""Shows the progress of a run: tfm status runs/quickstart

Prints step, speed and time left, the best and the last evaluation, checkpoints, scores and disk space. The
command only reads the work directory, so it does not disturb a run that trains, here or on another machine.
"""

import math
import os
import time
from collections.abc import Iterator, Mapping

from tfm.commands import options as command_options
from tfm.commands.command import command
from tfm.devices.memory import format_bytes
from tfm.errors import escape
from tfm.io import local_copies
from tfm.training.run_log import format_duration
from tfm.training.setup import CHECKPOINT_FOLDER
from tfm.workdir.status import DiskUse, Status, measure_folder, read_status

COLUMN = 15  # width of the column of names, in characters


@command
def main(options: command_options.Status) -> None:
    """Prints the status."""
    status = read_status(options.workdir)
    print("\n".join(escape(f"{name:<{COLUMN}} {text}") for name, text in describe(status)))


def describe(status: Status) -> Iterator[tuple[str, str]]:
    """Yields (name, text) for each line of the status, such as ("step", "1,000 of 20,000").

    Leaves out the lines that the run has no values for.
    """
    yield "run", f"{local_copies.show(status.workdir)} ({status.config.task}, {status.config.model.name})"
    yield "state", describe_state(status)
    if not status.is_export:
        yield "step", f"{status.step:,} of {status.config.training.steps:,}"
    if "train/loss" in status.training:
        yield "training", describe_training(status)
    if status.best is not None:
        step, value = status.best
        yield "best", f"{status.best_metric.removeprefix('validation/')} {value:.4g} at step {step:,}"
    if status.validation:
        scores = "  ".join(_shown_scores(status.validation))
        yield "last evaluation", f"step {status.validation['step']:,}: {scores}"
    if status.checkpoints:
        steps = ", ".join(f"{step:,}" for step in status.checkpoints)
        size = measure_folder(os.path.join(status.workdir, CHECKPOINT_FOLDER))
        yield "checkpoints", f"{steps} ({format_disk_use(size)})"
    for name, evaluated in status.evaluations.items():
        steps = ", ".join(f"{step:,}" for step in evaluated.checkpoints)
        shown = "  ".join(f"{score.name} {score.format_value()}" for score in evaluated.scores[:3])
        yield name, f"step {steps}: {shown}" if steps else shown
    if status.start:
        commit = str(status.start.get("code", {}).get("commit", ""))
        yield (
            "last start",
            f"{status.start.get('time', '')} on {status.start.get('host', '')} {commit[:8]}".rstrip(),
        )
    yield "disk", format_disk_use(status.disk)


def format_disk_use(size: DiskUse) -> str:
    """Returns a size such as "1.20 GiB", and the number of folders that could not be read, if any."""
    if not size.unreadable_folders:
        return format_bytes(size.bytes)
    return f"{format_bytes(size.bytes)} without {size.unreadable_folders:,} unreadable folder(s)"


def describe_state(status: Status) -> str:
    """Returns the state with the time left or what to do, such as "training: HOLDER, about 1:15 left"."""
    left = "" if status.seconds_left is None else f", about {format_duration(status.seconds_left)} left"
    resumes = "stopped: the same command resumes the run"
    texts = {
        "training": f"training: {status.holder}{left}",
        "export": "exported model",
        "evaluations": "evaluations of a run in another folder",
        "not started": "not started: its preparation failed or was interrupted",
        "stopped": resumes if status.checkpoints else "stopped before its first checkpoint",
    }
    return texts.get(status.state, status.state)


def describe_training(status: Status) -> str:
    """Returns loss, speed, step and age of the last log line with a loss.

    For example, "loss 2.1034  25,000 tokens/s  at step 1,000, 3:15 ago". An unknown speed or age is left
    out.
    """
    row = status.training
    rate = row.get(f"train/{status.unit}_per_second")
    speed = "" if rate is None else f"  {rate:,.0f} {status.unit}/s"
    age = time.time() - row.get("time", math.nan)
    ago = format_duration(max(age, 0)) if math.isfinite(age) else ""
    return f"loss {row['train/loss']:.4f}{speed}  at step {row['step']:,}" + (f", {ago} ago" if ago else "")


def _shown_scores(row: Mapping[str, float]) -> list[str]:
    """Returns the validation scores of a log line, each with its name."""
    return [
        f"{name.removeprefix('validation/')} {value:.4g}"
        for name, value in row.items()
        if name.startswith("validation/")
    ]
