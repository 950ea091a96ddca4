"""Recomputes one training step of a run, with its gradients and updates."""

import contextlib
import dataclasses
import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tfm.errors import UserError
from tfm.io.tree_paths import join_path
from tfm.training.config import TrainingConfig
from tfm.training.loss_calls import means
from tfm.training.setup import Setup, open_checkpoints
from tfm.training.step import TrainState, compute_updates, merge_trees
from tfm.training.task import Batch, Task
from tfm.workdir.starts import changed_fields, last_start, open_same_data

LOG_EVERY = 50  # steps
log = logging.getLogger(__name__)


class Replay(NamedTuple):
    """A step that was recomputed. Arrays are on the host.

    Attributes:
      step: number of the step, counted from 1.
      start: step of the checkpoint that was restored. The steps in between were repeated.
      batch: batch of the step.
      facts: description of the batch in the data, see `Data.describe_batch`.
      metrics: {name: mean} of the step.
      before, after: the `TrainState` before and after the step.
      gradients: gradients of the mean loss, a tree like the parameters. The gradient of a parameter that the
        step does not train is 0.
    """

    step: int
    start: int
    batch: Batch
    facts: dict[str, Any]
    metrics: dict[str, float]
    before: TrainState
    after: TrainState
    gradients: Any


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


def replay_step(task: Task, config: TrainingConfig, workdir: str, step: int) -> Replay:
    """Recomputes one training step.

    Restores the newest earlier checkpoint that is intact, and repeats the steps in between. The result is
    identical bit for bit on the same devices and versions. Writes no files. A warning names the fields of the
    config that have changed since the run trained the step.

    Args:
      task, config, workdir: of the run, as `tfm.workdir.train.train` takes them.
      step: counted from 1.

    Raises:
      UserError: if no intact checkpoint is before the step, the run has fewer steps, its training data or
        tokenizer have changed since it trained the step, or there are several hosts.
    """
    if not 1 <= step <= config.steps:
        raise UserError(f"Expected a step between 1 and training.steps {config.steps:,}, got {step:,}.")
    if jax.process_count() > 1:
        raise UserError("Expected one host to replay a step, got several: replay on one of them.")
    setup = Setup(task, config)
    data = open_same_data(task, workdir, step, before=step)
    _warn_of_another_config(task, workdir, step)
    start, state = _restore_before(setup, workdir, step)
    batches = data.train_batches(start)
    partitioner = setup.partitioner
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
    placed, metrics = make_step(placed, placed_batch, setup.constants)
    after = jax.device_get(partitioner.fetch(placed))
    mean_metrics = means(jax.device_get(partitioner.fetch(metrics)))
    facts = data.describe_batch(step - 1)
    return Replay(step, start, batch, facts, mean_metrics, before, after, gradients)


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
            damaged = [each for each in steps if each < step]
            there = f"the first is of step {steps[0]:,}" if steps else "there is none"
            advice = "choose a later step, or train with a larger training.keep"
            if damaged:
                there = f"the checkpoint of step {damaged[-1]:,} is damaged"
                advice = "restore it from a copy, or choose a later step"
            raise UserError(
                f"Replaying step {step:,} needs an intact checkpoint before it, and in {checkpoints.folder} "
                f"{there}: {advice}."
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


def _norm(x: np.ndarray) -> float:
    return float(np.linalg.norm(np.asarray(x, np.float64)))
