"""Recomputes one training step of a run, with its gradients and the activations of its forward pass."""

import contextlib
import dataclasses
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tfm.errors import UserError
from tfm.io.tree_paths import join_path
from tfm.layers.observe import Recorder, activate
from tfm.training.config import TrainingConfig
from tfm.training.loss_calls import means
from tfm.training.partitioning import Partitioner
from tfm.training.setup import Setup, open_checkpoints
from tfm.training.step import (
    TrainState,
    compute_updates,
    find_divisor,
    loss_of,
    make_context,
    merge_trees,
    split_rows,
)
from tfm.training.task import Batch, Task
from tfm.workdir.starts import changed_fields, last_start

LOG_EVERY = 50  # steps
MAX_LOSS_DIFFERENCE = 1e-5  # relative difference of the mean losses of a model in float32
MAX_ROUNDED_DIFFERENCE = 1e-3  # the same for a model in another dtype
log = logging.getLogger(__name__)


class Replay(NamedTuple):
    """A step that was recomputed. Arrays are on the host.

    Attributes:
      step: its number, counted from 1.
      start: step of the checkpoint before it. The steps in between were repeated.
      batch: of the step.
      facts: what identifies the batch in the data, see `Data.describe_batch`.
      metrics: {name: mean} of the step.
      before, after: the `TrainState` before and after it.
      gradients: gradients of the mean loss, a tree like the parameters. The gradient of a parameter that the
        step does not train is 0.
      reads: {name: activation} of the first update that is due in the step, see `tfm.interpret`. The rows
        of each device and micro-batch stand together.
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
    """The L2 norms of a parameter before a step, of the gradient of its mean loss, and of its update.

    Attributes:
      name: path of the parameter.
      norm: norm before the step.
      gradient: norm of the gradient of the mean loss.
      update: norm of the difference that the step added.
    """

    name: str
    norm: float
    gradient: float
    update: float


def replay_step(
    task: Task, config: TrainingConfig, workdir: str, step: int, read: Iterable[str] = ()
) -> Replay:
    """Recomputes one training step.

    Restores the newest earlier checkpoint that is intact, and repeats the steps in between. The result is
    identical bit for bit on the same devices and versions. Writes nothing.

    Args:
      task, config, workdir: of the run, as `tfm.workdir.train.train` takes them.
      step: counted from 1.
      read: names or globs of activations of the forward passes of the step, see `tfm.interpret`.

    Raises:
      UserError: if no intact checkpoint is before the step, the run has fewer steps, there are several hosts,
        a glob matches nothing, activations are read of a step without an update, or the pass that reads
        activations has another loss than the step. Dropout under model.scan causes such a difference.
    """
    if not 1 <= step <= config.steps:
        raise UserError(f"Expected a step between 1 and training.steps {config.steps:,}, got {step:,}.")
    if jax.process_count() > 1:
        raise UserError("Expected one host to replay a step, got several: replay on one of them.")
    setup, data = Setup(task, config), task.open_data()
    _warn_of_another_config(task, workdir, step)
    start, state = _restore_before(setup, workdir, step)
    batches, partitioner = data.train_batches(start), setup.partitioner
    make_step = partitioner.compile(setup.step, setup.state, setup.constant_shapes)
    placed = partitioner.place(state)
    for number in range(start + 1, step):
        if (number - start) % LOG_EVERY == 1:
            jax.block_until_ready(placed)  # otherwise the line would report steps that are not computed yet
            log.info("Recomputing step %s before step %s", f"{number:,}", f"{step:,}")
        placed, _ = make_step(placed, partitioner.place_batch(next(batches)), setup.constants)
    batch = next(batches)
    placed_batch = partitioner.place_batch(batch)
    before = jax.device_get(partitioner.fetch(placed))
    gradients = _compute_gradients(setup, placed, placed_batch)
    reads, losses = read_activations(setup, before, batch, list(read))
    placed, metrics = make_step(placed, placed_batch, setup.constants)
    after = jax.device_get(partitioner.fetch(placed))
    mean_metrics = means(jax.device_get(partitioner.fetch(metrics)))
    for name, loss in losses.items():
        expected = mean_metrics.get(name, loss)  # a step that was skipped has no loss
        check_same_pass(loss, expected, getattr(getattr(task.config, "model", None), "dtype", "float32"))
    facts = data.describe_batch(step - 1)
    return Replay(step, start, batch, facts, mean_metrics, before, after, gradients, reads)


def _warn_of_another_config(task: Task, workdir: str, step: int) -> None:
    """Warns if the config has changed since the run trained the step."""
    now = dataclasses.asdict(task.config)
    changed = changed_fields(last_start(workdir, before=step).get("config", now), now)
    if changed:
        each = "; ".join(f"{path} was {old!r} and is now {new!r}" for path, (old, new) in changed.items())
        log.warning(
            "Step %s was trained with another config, so the recomputed step may differ: %s",
            f"{step:,}",
            each,
        )


def describe_changes(replay: Replay) -> Iterator[Change]:
    """Yields the `Change` of each parameter."""
    trees = replay.before.params, replay.gradients, replay.after.params
    leaves = zip(*map(jax.tree.leaves, trees), strict=True)
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(replay.before.params)]
    for path, (before, gradient, after) in zip(paths, leaves, strict=True):
        yield Change(join_path(path), _norm(before), _norm(gradient), _norm(after - before))


def _restore_before(setup: Setup, workdir: str, step: int) -> tuple[int, TrainState]:
    """Returns (step, state) of the newest intact checkpoint before a step."""
    checkpoints = open_checkpoints(setup.task, setup.config, workdir, assets=setup.assets())
    with contextlib.closing(checkpoints):
        steps = checkpoints.steps()
        intact = (each for each in reversed(steps) if each < step and not checkpoints.find_damage(each))
        start = next(intact, None)
        if start is None:
            there = f"the first is of step {steps[0]:,}" if steps else "there is none"
            raise UserError(
                f"Replaying step {step:,} needs an intact checkpoint before it, and in {checkpoints.folder} "
                f"{there}: choose a later step, or train with a larger training.keep."
            )
        like = setup.partitioner.like(setup.state)
        return start, TrainState.from_items(checkpoints.restore(start, like.items()))


def _compute_gradients(setup: Setup, placed: Any, batch: Any) -> Any:
    """Returns the gradients of all updates of a step, on the host."""
    micro_batches = setup.config.gradient_accumulation_steps

    def compute(state, batch, constants, *, over_rows):
        gradients = jax.tree.map(lambda x: None, state.params)
        for _, _, result in compute_updates(
            setup.learners, setup.step_key, state, batch, constants, over_rows, micro_batches
        ):
            gradients = merge_trees(gradients, result.gradients)
        return merge_trees(gradients, jax.tree.map(jnp.zeros_like, state.params))

    partitioner = setup.partitioner
    compiled = partitioner.compile(compute, setup.state, setup.constant_shapes, is_step=False)
    return jax.device_get(partitioner.fetch(compiled(placed, batch, setup.constants)))


def read_activations(
    setup: Setup, state: TrainState, batch: Batch, names: Sequence[str]
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Reads activations of the first update that is due in the step, of all devices and micro-batches.

    Args:
      setup: of the run.
      state: the state before the step, on the host.
      batch: a host batch.
      names: names or globs of activations. If they are empty, the result is empty, too.

    Returns:
      ({name: activation} on the host, {name of the metric of the loss: mean loss of the forward passes}).

    Raises:
      UserError: if no update is due in the step, or a glob matches nothing.
    """
    if not names:
        return {}, {}
    due = [index for index, each in enumerate(setup.learners) if each.is_due(state.step)]
    if not due:
        raise UserError(
            f"Step {state.step + 1:,} has no activations to read, because no update of the task is due in "
            "it. Choose another step, or replay without reading."
        )
    learner, micro_batches = setup.learners[due[0]], setup.config.gradient_accumulation_steps
    mesh = setup.partitioner.mesh  # of `pmap`, too, which divides rows in the same way
    partitioner = Partitioner([*mesh.devices.flat], mesh.shape["fsdp"], mesh.shape["tensor"], setup.axes)

    def forward(state, batch, context):
        recorder = Recorder(names)
        with activate(recorder):
            output = learner.loss({"params": state.params, **state.model_state}, batch, context)
        recorder.check()
        return recorder.reads, output.terms

    def on_device(state, batch, context):
        if micro_batches == 1:
            reads, terms = forward(state, batch, context)
            return reads, jax.tree.map(lambda x: jnp.asarray(x)[None], terms)
        parts = split_rows(batch, micro_batches)
        keys = jax.vmap(lambda index: jax.random.fold_in(context.rng, index))(jnp.arange(micro_batches))
        reads, terms = jax.lax.map(
            lambda part: forward(state, part[0], context.replace(rng=part[1])), (parts, keys)
        )
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), reads), terms

    compiled = partitioner.compile_rows(on_device, setup.state, setup.constant_shapes)
    constants = partitioner.place(setup.host_constants)
    context = make_context(learner, setup.step_key, state.step, constants)
    placed, placed_batch = partitioner.place(state), partitioner.place_batch(batch)
    reads, terms = jax.device_get(compiled(placed, placed_batch, context))
    total, count = loss_of(jax.tree.map(np.sum, terms))
    return reads, {setup.loss_names[due[0]]: float(total / find_divisor(count))}


def check_same_pass(loss: float, expected: float, dtype: str) -> None:
    """Checks that the forward pass that reads activations has the loss of the step.

    Args:
      loss: mean loss of the forward pass.
      expected: mean loss of the step.
      dtype: compute dtype of the model.

    Raises:
      UserError: if the losses differ by more than rounding.
    """
    tolerance = MAX_LOSS_DIFFERENCE if dtype == "float32" else MAX_ROUNDED_DIFFERENCE
    if abs(loss - expected) > tolerance * abs(expected):
        raise UserError(
            f"The forward pass that reads activations has the loss {loss:.6g} and the step {expected:.6g}: "
            "dropout under model.scan draws other masks when layers run one by one. Replay without reading."
        )


def _norm(x: np.ndarray) -> float:
    return float(np.linalg.norm(np.asarray(x, np.float64)))
