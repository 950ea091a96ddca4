"""Makes one step of a run again, from the checkpoint before it, and reads what happened in it."""

import contextlib
import dataclasses
import logging
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from tfm.errors import UserError
from tfm.interpret.recorder import Recorder
from tfm.io.provenance import changed_fields, last_start
from tfm.layers.observe import activate
from tfm.layers.parameter_axes import parameter_axes
from tfm.training.config import TrainingConfig
from tfm.training.partitioning import uses_mesh
from tfm.training.reporting import means
from tfm.training.setup import make_setup, open_checkpoints
from tfm.training.step import TrainState, find_divisor
from tfm.training.task import Batch, Task

LOG_EVERY = 50  # steps
SAME_LOSS = 1e-5  # relative difference of the mean, of a model in float32
SAME_LOSS_ROUNDED = 1e-3  # of one in another dtype
log = logging.getLogger(__name__)


class Replay(NamedTuple):
    """A step that was made again; arrays are on the host.

    Attributes:
      step: its number, from 1.
      start: step of the checkpoint from which the run was continued up to it.
      batch: of the step.
      facts: what identifies the batch in the data, see `Data.describe_batch`.
      metrics: {name: mean}, those of the step.
      before, after: the `TrainState` before and after it.
      gradients: of the mean loss, a tree like the parameters.
      reads: {name: activation}, see `tfm.interpret`; rows in the order of `split_batch`.
    """

    step: int
    start: int
    batch: Batch
    facts: dict[str, Any]
    metrics: dict[str, float]
    before: TrainState
    after: TrainState
    gradients: Any
    reads: dict[str, np.ndarray]


class Change(NamedTuple):
    """What a step did to a parameter, or to its part of one head: L2 norms.

    Attributes:
      name: path of the parameter.
      head: from 0, or None for the whole.
      norm: before the step.
      gradient: of the mean loss.
      update: what the step added.
    """

    name: str
    head: int | None
    norm: float
    gradient: float
    update: float


def replay_step(
    task: Task, config: TrainingConfig, workdir: str, step: int, read: Iterable[str] = ()
) -> Replay:
    """Makes step `step` of a run again: bit for bit the same on the same devices and versions.

    The steps since the newest checkpoint before it are made too. Writes nothing.

    Args:
      task, config, workdir: of the run, as `tfm.training.loop.train` takes them.
      step: counted from 1.
      read: names or globs of activations of the step's forward pass, see `tfm.interpret`.

    Raises:
      UserError: there is no checkpoint before the step or it cannot be used, the run has fewer steps, a glob
        matches nothing, the pass that reads is not that of the step, as dropout under model.scan, or the run
        is over a mesh of several devices.
    """
    if not 1 <= step <= config.steps:
        raise UserError(f"Expected a step between 1 and training.steps {config.steps:,}, got {step:,}.")
    setup = make_setup(task, config)
    if setup.partitioner.devices > 1 and uses_mesh(config):
        raise UserError(
            "A step over a mesh of several devices draws one dropout mask for all, which replay does not: "
            "replay a run of one device, or of training.parallel=pmap."
        )
    _warn_of_another_config(task, workdir, step)
    start, state = _restore_before(setup, task, config, workdir, step)
    data = task.open_data()
    batches, make_step = data.train_batches(start), setup.partitioner.compile(setup.step, setup.state)
    placed = setup.partitioner.place_state(state)
    for number in range(start + 1, step):
        if (number - start) % LOG_EVERY == 1:
            jax.block_until_ready(placed)  # so that the line is true
            log.info("Making step %s of %s again", f"{number:,}", f"{step:,}")
        placed, _ = make_step(placed, setup.partitioner.place_batch(next(batches)))
    batch = next(batches)
    before = jax.device_get(setup.partitioner.fetch_state(placed))
    placed, metrics = make_step(placed, setup.partitioner.place_batch(batch))
    after = jax.device_get(setup.partitioner.fetch_state(placed))
    sums = jax.device_get(setup.partitioner.fetch_metrics(metrics))
    pieces = setup.split_step(step, batch, config.gradient_accumulation_steps)
    gradients = _mean_gradients(setup.loss, before.params, pieces)
    metrics, facts = means(sums), data.describe_batch(step - 1)
    reads = {}
    if read := list(read):
        reads, loss = _read_activations(setup.loss, before.params, pieces, read)
        dtype = getattr(getattr(task.config, "model", None), "dtype", "float32")
        tolerance = SAME_LOSS if dtype == "float32" else SAME_LOSS_ROUNDED
        _check_same_pass(loss, metrics.get("loss", loss), tolerance)
    return Replay(step, start, batch, facts, metrics, before, after, gradients, reads)


def _warn_of_another_config(task, workdir, step):
    """Fields may change when a run resumes; a step before that is made again with those of today."""
    now = dataclasses.asdict(task.config)
    changed = changed_fields(last_start(workdir, before=step).get("config", now), now)
    if changed:
        each = "; ".join(f"{path} was {old!r} and is now {new!r}" for path, (old, new) in changed.items())
        log.warning("Step %s was made with another config, and may be another one now: %s", f"{step:,}", each)


def describe_changes(replay: Replay, heads: bool = False) -> Iterator[Change]:
    """The `Change` of each parameter; with `heads`, also that of each head where a parameter has them."""
    trees = replay.before.params, replay.gradients, replay.after.params
    leaves = zip(*map(jax.tree.leaves, trees), strict=True)
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(replay.before.params)]
    for path, (before, gradient, after) in zip(paths, leaves, strict=True):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        arrays = before, gradient, after - before
        yield Change(name, None, *map(_norm, arrays))
        axes = parameter_axes(name, before.ndim)
        if not heads or "heads" not in axes:
            continue
        axis = axes.index("heads")
        for head in range(before.shape[axis]):
            yield Change(name, head, *(_norm(np.take(x, head, axis)) for x in arrays))


def _restore_before(setup, task, config, workdir, step):
    """(step, state) of the newest checkpoint before a step."""
    with contextlib.closing(open_checkpoints(task, config, workdir)) as checkpoints:
        steps = checkpoints.steps()
        before = [each for each in steps if each < step]
        if not before:
            there = f"the first is of step {steps[0]:,}" if steps else "there is none"
            raise UserError(
                f"Replaying step {step:,} needs a checkpoint before it, and in {checkpoints.folder} "
                f"{there}: choose a later step, or train with a larger training.keep."
            )
        like = setup.partitioner.like(setup.state)
        return before[-1], TrainState.from_items(checkpoints.restore(before[-1], like.items()))


def _mean_gradients(loss, params, pieces):
    """The gradient of the mean loss over all pieces, on the host."""

    def loss_sum(params, batch, key):
        (total, count), _ = loss(params, batch, key)
        return total, count

    gradient = jax.jit(jax.grad(loss_sum, has_aux=True))
    found = [jax.device_get(gradient(params, *piece)) for piece in pieces]
    count = float(find_divisor(sum(count for _, count in found)))
    return jax.tree.map(lambda *parts: sum(parts) / count, *(gradients for gradients, _ in found))


def _read_activations(loss, params, pieces, read):
    """{name: activation} of the forward passes of all pieces, on the host, and their mean loss."""

    def forward(params, batch, key):
        recorder = Recorder(read)
        with activate(recorder):
            (total, count), _ = loss(params, batch, key)
        recorder.check()
        return recorder.reads, total, count

    forward = jax.jit(forward)
    found, totals, counts = zip(*(jax.device_get(forward(params, *piece)) for piece in pieces), strict=True)
    reads = {name: np.concatenate([each[name] for each in found]) for name in found[0]}
    return reads, float(sum(totals) / find_divisor(sum(counts)))


def _check_same_pass(found, expected, tolerance):
    """Raises a UserError unless the pass that read has the loss of the step."""
    if abs(found - expected) > tolerance * abs(expected):
        raise UserError(
            f"The forward pass that reads activations has the loss {found:.6g} and the step {expected:.6g}: "
            "dropout under model.scan draws other masks when layers run one by one. Replay without reading."
        )


def _norm(x):
    return float(np.linalg.norm(np.asarray(x, np.float64)))
