"""Sets a run up: schedule, partitioner, first state, compiled step, checkpoints."""

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from tfm.runtime.checkpoints import Checkpoints
from tfm.runtime.lock import DirectoryGuard
from tfm.runtime.memory import Memory, check_memory, explain_out_of_memory, measure_memory
from tfm.runtime.restoring import check_shapes
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import make_optimizer, make_schedule
from tfm.training.partitioning import Partitioner, make_partitioner
from tfm.training.step import TrainState, check_zero_rows, make_train_step
from tfm.training.task import Batch, Task

CHECKPOINT_FOLDER = "checkpoints"
log = logging.getLogger(__name__)


class TrainSetup(NamedTuple):
    """Schedule, partitioner, first state, the step to compile, its random key, and the task's loss in it."""

    schedule: Callable
    partitioner: Partitioner
    state: TrainState
    step: Callable
    rng: jax.Array
    loss: Callable


def make_setup(
    task: Task, config: TrainingConfig, compile_only_devices: Sequence[jax.Device] | None = None
) -> TrainSetup:
    """Makes the `TrainSetup` of a run, its random parameters among it.

    Args:
      task, config: of the run.
      compile_only_devices: devices that are not here, to compile for them; the state is then its shapes.

    Raises:
      UserError: the config asks for what the devices or the model cannot do.
    """
    schedule = make_schedule(config, getattr(task, "d_model", None))
    optimizer = make_optimizer(config, schedule)
    init_rng, step_rng = jax.random.split(jax.random.key(config.seed))
    partitioner = make_partitioner(config, compile_only_devices)
    make = jax.eval_shape if compile_only_devices else lambda create, rng: jax.jit(create)(rng)
    state = make(lambda rng: TrainState.create(task.init(rng), optimizer, config.ema_decay), init_rng)
    step = make_train_step(
        task.loss,
        optimizer,
        step_rng,
        config.ema_decay,
        config.gradient_accumulation_steps,
        config.on_non_finite,
    )
    return TrainSetup(schedule, partitioner, state, step, step_rng, task.loss)


def open_checkpoints(
    task: Task, config: TrainingConfig, workdir: str, guard: DirectoryGuard | None = None
) -> Checkpoints:
    """The checkpoints of a run, as training and evaluation find them; `guard` as `Checkpoints` takes it."""
    folder = os.path.join(workdir, CHECKPOINT_FOLDER)
    return Checkpoints(
        folder,
        best_metric=task.best.metric,
        best_order=task.best.order,
        keep=config.keep,
        keep_best=config.keep_best,
        keep_hours=config.keep_hours,
        assets=task.assets(),
        guard=guard,
    )


def restore_or_initialize(
    setup: TrainSetup, checkpoints: Checkpoints, load_initial_params: Callable[[], Any] | None
) -> tuple[TrainState, dict[str, Any]]:
    """The state to train from, and the progress that was saved with it.

    Args:
      setup: of the run.
      checkpoints: of the run; a run that has one resumes from the newest that is intact.
      load_initial_params: returns the initial parameters if there is no checkpoint; None for random ones.

    Returns:
      (state, progress): progress as `Checkpoints.save` was given it, {} for a run that begins.
    """
    newest = checkpoints.recover()
    if newest is not None:
        log.info("Resuming from step %s in %s", f"{newest:,}", checkpoints.directory)
        state = checkpoints.restore(setup.partitioner.like(setup.state), newest)
        return state, checkpoints.restore_progress(newest)
    state = setup.state
    if load_initial_params is not None:
        # Saved at once, so that the run resumes with these weights whenever it is stopped.
        weights = load_initial_params()
        check_shapes(state.params, weights, "The set of initial parameters")
        state = state.with_params(weights)
        checkpoints.save(setup.partitioner.fetch_state(setup.partitioner.place_state(state)))
    return state, {}


def compile_step(
    setup: TrainSetup, state: TrainState, batch: Batch, gradient_accumulation_steps: int
) -> tuple[Callable, TrainState, Memory]:
    """Compiles the step for one shape; a later call with it finds what was compiled.

    Args:
      setup: of the run.
      state: to place on the devices.
      batch: host batch of the largest shape, so that what is too large is found before the first step.
      gradient_accumulation_steps: of the config, for the error message.

    Returns:
      (the step as it is called, the placed state, the `Memory` it needs).

    Raises:
      UserError: a step needs more memory than a device has, or the loss counts rows of zeros.
    """
    if setup.partitioner.devices * gradient_accumulation_steps > 1:  # else no rows are added
        check_zero_rows(setup.loss, setup.state.params, batch)
    with explain_out_of_memory(gradient_accumulation_steps):
        step = setup.partitioner.compile(setup.step, setup.state)
        state = setup.partitioner.place_state(state)
        memory = measure_memory(step.lower(state, setup.partitioner.place_batch(batch)).compile())
    check_memory(memory, gradient_accumulation_steps)
    return step, state, memory
