"""What a run is made of before its first step: schedule, layout, state, compiled step, checkpoints."""

import logging
import os
from collections.abc import Callable
from typing import NamedTuple

import jax

from tfm.runtime.checkpoints import Checkpoints
from tfm.runtime.memory import check_memory, check_training_fits, enough_memory, memory_of
from tfm.runtime.restoring import check_shapes
from tfm.training.early_stopping import Evaluations
from tfm.training.optimizers import make_optimizer, make_schedule
from tfm.training.partitioning import Layout, make_layout
from tfm.training.step import TrainState, check_zero_rows, make_train_step

CHECKPOINT_FOLDER = "checkpoints"
log = logging.getLogger(__name__)


class Parts(NamedTuple):
    """Schedule, layout, first state, the step to compile, its random key, and the task's loss in it."""

    schedule: Callable
    layout: Layout
    state: TrainState
    step: Callable
    rng: jax.Array
    loss: Callable


def assemble(task, config):
    """The `Parts` of a run.

    Raises:
      UserError: the model and its optimizer state are larger than the memory, found before they are traced.
    """
    check_training_fits(task.model.config, config)
    schedule = make_schedule(config, getattr(task, "d_model", None))
    optimizer = make_optimizer(config, schedule)
    init_rng, step_rng = jax.random.split(jax.random.key(config.seed))
    layout = make_layout(config)
    state = jax.jit(lambda rng: TrainState.create(task.init(rng), optimizer, config.ema_decay))(init_rng)
    step = make_train_step(
        task.loss, optimizer, step_rng, config.ema_decay, config.micro_batches, config.on_non_finite
    )
    return Parts(schedule, layout, state, step, step_rng, task.loss)


def open_checkpoints(task, config, workdir, held=None):
    """The checkpoints of a run, as training and evaluation find them; `held` as `Checkpoints` takes it."""
    folder = os.path.join(workdir, CHECKPOINT_FOLDER)
    return Checkpoints(
        folder,
        best_metric=task.best_metric,
        keep=config.keep,
        keep_best=config.keep_best,
        keep_hours=config.keep_hours,
        assets=task.assets(),
        held=held,
    )


class Carried(NamedTuple):
    """What a run carries from step to step beside its state.

    Attributes:
      sums: of the metrics since the last line, see `Progress`.
      evaluations: so far.
      unevaluated: a signal cut short the evaluation that belongs to the step.
    """

    sums: dict
    evaluations: Evaluations
    unevaluated: bool = False

    @classmethod
    def of(cls, saved):
        """From what a checkpoint holds; one from before there was any holds {}."""
        evaluations = Evaluations(*saved.get("evaluations", ()))
        return cls(saved.get("sums", {}), evaluations, saved.get("unevaluated", False))


def first_state(parts, checkpoints, first_weights):
    """The state to go on from, and what is carried with it.

    Args:
      parts: of the run.
      checkpoints: of the run; the newest intact one is what it goes on from.
      first_weights: what gives the parameters to begin with where there is no checkpoint, or None.
    """
    newest = checkpoints.recover()
    if newest is not None:
        log.info("Going on from step %s in %s", f"{newest:,}", checkpoints.directory)
        state = checkpoints.restore(parts.layout.like(parts.state), newest)
        return state, Carried.of(checkpoints.restore_progress(newest))
    state = parts.state
    if first_weights is not None:
        # Saved at once, so that the run goes on with these weights whenever it is stopped.
        weights = first_weights()
        check_shapes(state.params, weights, "What the run would begin with")
        state = state.begun_with(weights)
        checkpoints.save(parts.layout.fetch_state(parts.layout.place_state(state)))
    return state, Carried.of({})


def compile_step(parts, state, batch, micro_batches):
    """Compiles the step for one shape; a later call with it finds what was compiled.

    Args:
      parts: of the run.
      state: to place on the devices.
      batch: host batch of the largest shape, lest it be found too large in the middle of a run.
      micro_batches: of the config, for the sentence.

    Returns:
      (the step as it is called, the placed state, the `Memory` it needs).

    Raises:
      UserError: a step needs more memory than a device has, or the loss counts rows of zeros.
    """
    if parts.layout.devices * micro_batches > 1:  # else no rows are added
        check_zero_rows(parts.loss, parts.state.params, batch)
    with enough_memory(micro_batches):
        step = parts.layout.compile(parts.step, parts.state)
        state = parts.layout.place_state(state)
        memory = memory_of(step.lower(state, parts.layout.place_batch(batch)).compile())
    check_memory(memory, micro_batches)
    return step, state, memory
