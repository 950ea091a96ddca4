"""Recomputes one training step, bit for bit: tfm replay --workdir=DIR --step=450 --output=step.npz

Continues the run in memory from the newest checkpoint before the step. The work directory does not change.
Prints the batch and the metrics of the step, and the norms of each parameter, of its gradient and of its
update. --output=FILE.npz writes the batch, parameters and gradients as NumPy arrays.
"""

import contextlib
import json
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tfm import tasks
from tfm.commands import options as command_options
from tfm.commands.command import command
from tfm.commands.compilation import prepare_device
from tfm.errors import UserError
from tfm.io import local_copies
from tfm.io.files import atomic_file, only_writer
from tfm.io.tree_paths import join_path
from tfm.workdir import runs
from tfm.workdir.replay import Change, Replay, describe_changes, replay_step


def format_changes(changes: Iterable[Change]) -> list[str]:
    """Returns the lines of a table: a header, and for each parameter its path and the norms of `Change`.

    Norms have four significant digits. Columns are aligned with spaces.
    """
    changes = list(changes)
    width = max((len(change.name) for change in changes), default=0)
    header = f"{'parameter':<{width}}  {'norm':>10}  {'gradient':>10}  {'update':>10}"
    rows = [
        f"{name:<{width}}  {norm:>10.4g}  {gradient:>10.4g}  {update:>10.4g}"
        for name, norm, gradient, update in changes
    ]
    return [header, *rows]


def write_arrays(path: str, replay: Replay) -> None:
    """Writes the arrays of a step into a .npz file.

    Their names begin with "batch/", "before/" and "after/" (the parameters), and "gradient/". Arrays in
    bfloat16 are written in float32, because NumPy cannot read bfloat16.

    Raises:
      UserError: if an I/O error occurs.
    """
    trees = {
        "batch": replay.batch,
        "before": replay.before.params,
        "after": replay.after.params,
        "gradient": replay.gradients,
    }
    arrays: dict[str, Any] = {
        join_path(where): np.asarray(x, np.float32 if x.dtype == jnp.bfloat16 else x.dtype)
        for where, x in jax.tree_util.tree_leaves_with_path(trees)
    }
    with atomic_file(path) as file:
        np.savez(file, **arrays)


@command
def main(options: command_options.Replay) -> None:
    """Recomputes a step and prints it. With --output, also writes its arrays.

    Raises:
      UserError: if --output does not end in .npz, the folder is an export, or `replay_step` raises it.
    """
    if options.output and not options.output.endswith(".npz"):
        raise UserError(f"--output must end in .npz, got {options.output!r}.")
    folder = runs.open_folder(options.workdir)
    if folder.is_export:
        raise UserError(
            f"{options.workdir} is an export and has no steps to replay. Give the folder of its run."
        )
    prepare_device()
    # The folder of the output is tried before the computation, which may take minutes.
    with only_writer(options.output, "--output") if options.output else contextlib.nullcontext():
        task = tasks.find(folder.config.task).create(folder.config, options.workdir, new=False)
        replay = replay_step(task, folder.config.training, options.workdir, options.step)
        show(replay)
        if options.output:
            write_arrays(options.output, replay)
            print(f"wrote {local_copies.show(options.output)}")


def show(replay: Replay) -> None:
    """Prints the batch and the metrics of a step, and the table of its parameters."""
    print(f"step {replay.step:,}, from the checkpoint of step {replay.start:,}")
    print(f"batch: {json.dumps(replay.facts)}")
    print("  ".join(f"{name} {value:.6g}" for name, value in replay.metrics.items()), end="\n\n")
    print("\n".join(format_changes(describe_changes(replay))))
