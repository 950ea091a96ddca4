"""Sets a run up: schedule, partitioner, first state, compiled step, checkpoints."""

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

import jax

from tfm.checkpoints.retention import Retention
from tfm.checkpoints.store import CheckpointStore
from tfm.checkpoints.trees import check_shapes
from tfm.io.lock import DirectoryGuard
from tfm.memory import Memory, check_memory, explain_out_of_memory, measure_memory, return_free_memory
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import make_optimizer, make_schedule
from tfm.training.partitioning import Partitioner, make_partitioner
from tfm.training.step import TrainState, check_zero_rows, make_train_step, split_batch
from tfm.training.task import Batch, PlanningTask, Task

CHECKPOINT_FOLDER = "checkpoints"
log = logging.getLogger(__name__)


class TrainSetup(NamedTuple):
    """What a run needs before its first step.

    Attributes:
      schedule: of the learning rate.
      partitioner: of the devices.
      state: the shapes of the first state.
      create: makes the first state, with random parameters, from `init_rng`.
      step: the step to compile.
      rng: the random key of the steps.
      loss: the task's, as the step has it.
    """

    schedule: Callable
    partitioner: Partitioner
    state: TrainState
    create: jax.stages.Wrapped
    init_rng: jax.Array
    step: Callable
    rng: jax.Array
    loss: Callable

    def initialize(self) -> TrainState:
        """The first state."""
        return self.create(self.init_rng)

    @property
    def parameters(self) -> int:
        """How many the model has."""
        return sum(x.size for x in jax.tree.leaves(self.state.params))

    def split_step(
        self, step: int, batch: Batch, gradient_accumulation_steps: int
    ) -> list[tuple[Batch, jax.Array]]:
        """`split_batch` of this host's batch of a step, which counts from 1."""
        key = jax.random.fold_in(self.rng, step - 1)
        devices = self.partitioner.devices // jax.process_count()
        return split_batch(batch, key, devices, gradient_accumulation_steps)


def make_setup(
    task: Task, config: TrainingConfig, compile_only_devices: Sequence[jax.Device] | None = None
) -> TrainSetup:
    """Makes the `TrainSetup` of a run; allocates nothing.

    Args:
      task, config: of the run.
      compile_only_devices: devices that are not here, to compile for them; None for those that are.

    Raises:
      UserError: the config asks for what the devices or the model cannot do.
    """
    schedule = make_schedule(config, getattr(task, "d_model", None))
    optimizer = make_optimizer(config, schedule)
    init_rng, step_rng = jax.random.split(jax.random.key(config.seed))
    partitioner = make_partitioner(config, compile_only_devices)

    def create(rng):
        return TrainState.create(task.init(rng), optimizer, config.ema_decay)

    step = make_train_step(
        task.loss,
        optimizer,
        step_rng,
        config.ema_decay,
        config.gradient_accumulation_steps,
        config.on_non_finite,
    )
    state = jax.eval_shape(create, init_rng)
    return TrainSetup(schedule, partitioner, state, jax.jit(create), init_rng, step, step_rng, task.loss)


def open_checkpoints(
    task: Task, config: TrainingConfig, workdir: str, guard: DirectoryGuard | None = None
) -> CheckpointStore:
    """Returns the checkpoints of a run. `guard` is the guard of the run folder, for training."""
    folder = os.path.join(workdir, CHECKPOINT_FOLDER)
    return CheckpointStore(
        folder,
        best_metric=task.best.metric,
        best_order=task.best.order,
        retention=Retention(config.keep, config.keep_best, config.keep_hours),
        assets=task.assets(),
        guard=guard,
    )


def restore_or_initialize(
    setup: TrainSetup,
    checkpoints: CheckpointStore,
    load_initial_params: Callable[[], Any] | None,
    pool: Executor,
) -> tuple[int, Callable[[], TrainState], dict[str, Any]]:
    """The state to train from, and the progress that was saved with it.

    Args:
      setup: of the run.
      checkpoints: of the run; a run that has one resumes from the newest that is intact.
      load_initial_params: returns the initial parameters if there is no checkpoint; None for random ones.
      pool: compiles the initialization in the background, which takes seconds.

    Returns:
      (step, get_state, progress): updates made; a function that returns the state; progress as
      `CheckpointStore.save` was given it, {} for a run that begins.
    """
    newest = checkpoints.recover()
    if newest is not None:
        log.info("Resuming from step %s in %s", f"{newest:,}", checkpoints.folder)
        like = setup.partitioner.like(setup.state)
        state = TrainState.from_items(checkpoints.restore(newest, like.items()))
        return newest, lambda: state, checkpoints.progress(newest)
    if load_initial_params is None:
        compiled = pool.submit(lambda: setup.create.lower(setup.init_rng).compile())

        def get_state():
            program = compiled.result()
            return_free_memory()
            return program(setup.init_rng)

        return 0, get_state, {}
    # Saved at once, so that the run resumes with these weights whenever it is stopped.
    weights = load_initial_params()
    check_shapes(setup.state.params, weights, "The set of initial parameters")
    state = setup.initialize().with_params(weights)
    checkpoints.save(0, setup.partitioner.fetch_state(setup.partitioner.place_state(state)).items())
    return 0, lambda: state, {}


def compile_step(
    setup: TrainSetup, batch: Batch, gradient_accumulation_steps: int
) -> tuple[Callable, Memory, jax.stages.Compiled]:
    """Compiles the step for one shape; a later call with it finds what was compiled.

    Args:
      setup: of the run.
      batch: host batch of the largest shape, so that what is too large is found before the first step.
      gradient_accumulation_steps: of the config, for the error message.

    Returns:
      (the step as it is called, the `Memory` it needs, what was compiled).

    Raises:
      UserError: a step needs more memory than a device has.
    """
    with explain_out_of_memory(gradient_accumulation_steps):
        step = setup.partitioner.compile(setup.step, setup.state)
        compiled = step.lower(*setup.partitioner.place_shapes(setup.state, batch)).compile()
    memory = measure_memory(compiled)
    check_memory(memory, gradient_accumulation_steps)
    return step, memory, compiled


def start_compiling(
    task: Task, setup: TrainSetup, gradient_accumulation_steps: int, pool: Executor
) -> Callable[[Batch], tuple[Callable, Memory, jax.stages.Compiled]]:
    """Compiles the step in the background, where the task foretells its shape: opening data takes as long.

    Args:
      task, setup, gradient_accumulation_steps: of the run.
      pool: has a thread to compile in.

    Returns:
      A function that is called with the data's example, and returns and raises as `compile_step` of it.
    """
    planned = task.plan_example() if isinstance(task, PlanningTask) else None
    if planned is None:
        return lambda example: compile_step(setup, example, gradient_accumulation_steps)
    compiled = pool.submit(compile_step, setup, planned, gradient_accumulation_steps)

    def finish(example):
        if list_shapes(example) == list_shapes(planned):
            return compiled.result()
        return compile_step(setup, example, gradient_accumulation_steps)

    return finish


def list_shapes(batch: Batch) -> dict[str, tuple[tuple[int, ...], Any]]:
    """{name: (shape, type)} of the arrays of a batch."""
    return {name: (array.shape, array.dtype) for name, array in batch.items()}


def check_padding(
    setup: TrainSetup, get_state: Callable[[], TrainState], batch: Batch, gradient_accumulation_steps: int
) -> None:
    """`check_zero_rows` of the task's loss and a state's parameters, where rows of zeros pad batches."""
    if setup.partitioner.devices * gradient_accumulation_steps > 1:
        check_zero_rows(setup.loss, get_state().params, batch)


def place_state(
    setup: TrainSetup, get_state: Callable[[], TrainState], batch: Batch, gradient_accumulation_steps: int
) -> TrainState:
    """The state on the devices, after `check_padding`.

    Args:
      setup: of the run.
      get_state: see `restore_or_initialize`; called once.
      batch, gradient_accumulation_steps: see `compile_step`.

    Raises:
      UserError: the state does not fit into a device, or the loss counts rows of zeros.
    """
    with explain_out_of_memory(gradient_accumulation_steps):
        state = get_state()
        check_padding(setup, lambda: state, batch, gradient_accumulation_steps)
        return setup.partitioner.place_state(state)
