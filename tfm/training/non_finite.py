"""Diagnoses a non-finite step: finds its first non-finite tensor, and saves what reproduces it."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from tfm.checkpoints.store import CheckpointStore
from tfm.errors import UserError
from tfm.training.config import TrainingConfig
from tfm.training.task import Batch, Data, Task

NON_FINITE_FOLDER, REPORT = "non_finite", "report.json"
SHOWN = 5  # numbers of a list in an error message


def explain(
    task: Task,
    data: Data,
    config: TrainingConfig,
    setup: Any,
    workdir: str,
    state: Any,
    step: int,
    batch: Batch,
) -> UserError:
    """Saves the state and the batch of a step that was not finite, and finds out what was not.

    All hosts call it. The folder workdir/non_finite/step-N gets a checkpoint of the state, report.json, and
    batch-H.npz, the part of the batch that host H had.

    Args:
      task, data, config, setup, workdir: as in `tfm.training.loop`.
      state: a placed state, unchanged by the step; where steps are skipped, that of the step behind it.
      step: counted from 1.
      batch: of this host.

    Returns:
      The `UserError` to raise, whatever goes wrong on the way to it.
    """
    folder = os.path.join(workdir, NON_FINITE_FOLDER, f"step-{step}")
    whole, facts = setup.partitioner.fetch_state(state), data.describe_batch(step - 1)
    try:
        _save(folder, whole, batch)
        where = f"State and batch are in {folder}"
    except (OSError, UserError) as error:
        where = f"State and batch could not be saved ({error})"
    try:
        culprit = _locate_non_finite(task, config, setup, whole, step, batch)
    except RuntimeError as error:  # of XLA: one device may not hold what several did
        culprit = f"not found ({str(error).splitlines()[0]})"
    if jax.process_index() == 0:
        with contextlib.suppress(OSError), open(os.path.join(folder, REPORT), "w", encoding="utf-8") as file:
            json.dump({"step": step, "not_finite": culprit, "batch": facts}, file, indent=2)
    skip = ", or skip such batches with training.on_non_finite=skip"
    return UserError(
        f"The loss or gradient of step {step:,} is not finite; the first tensor that is not: {culprit}. "
        f"The batch: {_shown(facts)}. {where}; lower training.learning_rate_scale or fix the data"
        f"{skip if config.on_non_finite == 'stop' else ''}."
    )


def _locate_non_finite(task, config, setup, whole, step, batch):
    params = setup.partitioner.fetch_weights(whole.params)
    params = jax.device_put(jax.device_get(params), jax.local_devices()[0])
    pieces = setup.split_step(step, batch, config.gradient_accumulation_steps)
    culprit = first_not_finite(task.loss, params, pieces)
    return culprit or "none when the parts are computed again: only their sum is not finite, or results vary"


def first_not_finite(loss: Callable, params: Any, pieces: Iterable[tuple[Batch, jax.Array]]) -> str | None:
    """The name of the first tensor that is not finite, or None.

    Looked for in the parameters, then for each piece in the outputs of the modules as they are computed, the
    loss, and the gradients.

    Args:
      loss: of the task, (params, batch, key) -> (sum, count), metrics.
      params: on one device.
      pieces: (batch, key) pairs.
    """
    bad = _names(params)
    if bad:
        return f"parameter {_several(bad)}"
    gradient = jax.jit(jax.grad(lambda *arguments: loss(*arguments)[0][0]))
    for batch, key in pieces:
        try:
            total = _look_into_modules(loss, params, batch, key)
        except _NotFinite as output:
            return f"output of {output}"
        if not _finite(total):
            return f"loss, {float(total)}"
        bad = _names(gradient(params, batch, key))
        if bad:
            return f"gradient of {_several(bad)}"
    return None


class _NotFinite(Exception):
    """The first method of a Flax module with an output that is not finite."""


def _look_into_modules(loss, params, batch, key):
    """The loss's sum, or `_NotFinite`.

    Nothing is compiled as a whole, so that outputs have values. Inside of what Flax compiles all the same
    (remat, scan) they have none, and the module around it is named.
    """

    def look(method, args, kwargs, context):
        output = method(*args, **kwargs)
        if not _finite(output):
            path = "/".join(context.module.path) or type(context.module).__name__
            raise _NotFinite(f"{path} ({context.method_name})")
        return output

    with nn.intercept_methods(look):
        (total, _), _ = loss(params, batch, key)
    return total


def _finite(tree):
    # By NumPy: no program is compiled for each shape.
    return all(
        np.isfinite(x).all()
        for x in jax.tree.leaves(tree)
        if isinstance(x, jax.Array | np.ndarray)
        and not isinstance(x, jax.core.Tracer)
        and jnp.issubdtype(x.dtype, jnp.floating)
    )


def _names(tree):
    """The paths of the leaves that are not finite."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, x in leaves if not _finite(x)]


def _several(names):
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _shown(facts):
    """{"epoch": 0, "pairs": [7, 8]} -> "epoch 0, pairs 7, 8"."""
    return ", ".join(
        f"{name} {_list(value) if isinstance(value, list) else value}" for name, value in facts.items()
    )


def _list(numbers):
    more = f" and {len(numbers) - SHOWN:,} more" if len(numbers) > SHOWN else ""
    return ", ".join(map(str, numbers[:SHOWN])) + more


def _save(folder, state, batch):
    if jax.process_index() == 0:
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier start that came to the same step
        os.makedirs(folder)
    multihost_utils.sync_global_devices("non_finite")
    np.savez(os.path.join(folder, f"batch-{jax.process_index()}.npz"), **batch)
    with contextlib.closing(CheckpointStore(folder)) as checkpoints:
        checkpoints.save(int(state.step), state.items())
