"""The preparation of a run: everything it needs before its first step, made from its task and config."""

import functools
import hashlib
import logging
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from tfm.checkpoints.retention import Retention
from tfm.checkpoints.store import CheckpointStore, list_steps
from tfm.checkpoints.trees import check_shapes
from tfm.devices import backend
from tfm.devices.flops import count_flops, peak_flops
from tfm.devices.memory import (
    advise_sizes,
    available_memory,
    check_depth,
    check_estimate,
    check_memory,
    count_bytes,
    count_elements,
    explain_out_of_memory,
    measure_memory,
    return_free_memory,
)
from tfm.devices.mesh import record_axes
from tfm.errors import UserError, first_line
from tfm.io.lock import DirectoryGuard
from tfm.io.tree_paths import join_path, list_paths
from tfm.schedules import Schedule
from tfm.training.config import TrainingConfig
from tfm.training.learners import make_learners
from tfm.training.loss_calls import check_output, check_zero_rows
from tfm.training.optimizers import find_shared_factor, make_schedule, parse_factors, warn_of_large_peak
from tfm.training.partitioning import make_partitioner
from tfm.training.scores import Scores, check_score_names, find_best
from tfm.training.step import Learner, TrainState, make_train_step
from tfm.training.task import Batch, Context, Task, Variables, check_contract, variable_shapes

CHECKPOINT_FOLDER = "checkpoints"
CompiledStep = tuple[Callable[..., Any], jax.stages.Compiled]  # the step as it is called, its program
CONSTANTS = "constants"  # name of their fingerprint among the assets of a checkpoint
log = logging.getLogger(__name__)


class Setup:
    """The learners, the partitioner, the step and the shapes of the train state of a run.

    Allocates nothing on a device until `initialize` is called or `constants` is read.

    Args:
      task, config: of the run.
      devices: devices to compile for, present or not; None uses the devices that are present.

    Attributes:
      schedule: the learning rate as a function of the number of earlier updates.
      rates: {name: learning rate as a function of the number of completed steps}, those to report.
      loss_names: names of the metrics that hold the losses of the updates.
      init_key, step_key: random keys of the initialization and of the steps.
      axes: names of the axes of parameters, see `tfm.devices.mesh.record_axes`.
      state: shapes of the train state.
      step: the step to compile, see `tfm.training.step.make_train_step`.
      step_flops: operations of a device in the step that `compile_step` compiled, or 0 if the peak rate of
        the devices is unknown, see `tfm.devices.flops`.

    Raises:
      UserError: if the task lacks a member of the contract, or the devices or the task do not support the
        config.
    """

    def __init__(self, task: Task, config: TrainingConfig, devices: Sequence[jax.Device] | None = None):
        check_contract(task, Task)
        check_depth(task.config)
        self.task = task
        self.config = config
        warn_of_large_peak(config, task.d_model)
        self.schedule = make_schedule(config, task.d_model)
        self.init_key, self.step_key = jax.random.split(jax.random.key(config.seed))
        variables, self.axes = record_axes(task.init, self.init_key)
        self.partitioner = make_partitioner(config, devices, self.axes)
        if not isinstance(variables, Mapping) or "params" not in variables:
            raise UserError(
                'Expected the task\'s init to return variables, {"params": tree, ...}, got '
                f"{type(variables).__name__}: return what `model.init` returns."
            )
        updates = task.updates()
        self.learners = make_learners(updates, config, self.schedule, variables["params"])
        several = len(self.learners) > 1
        self.loss_names = [f"{learner.name}/loss" if several else "loss" for learner in self.learners]
        paths = list_paths(variables["params"])
        rate_factors = parse_factors("learning_rate_factors", config.learning_rate_factors)
        self.rates = {
            f"{learner.name}/learning_rate" if several else "learning_rate": functools.partial(
                _rate_of,
                update.schedule or self.schedule,
                update.every,
                find_shared_factor(filter(learner.trains, paths), rate_factors),
            )
            for update, learner in zip(updates, self.learners, strict=True)
        }
        self.state = jax.eval_shape(self._create, variables)
        if devices is None:
            _check_state_fits(self.state, self.learners, self.partitioner.device_bytes)
        self.step_flops = 0.0
        self.step = make_train_step(
            self.learners,
            self.step_key,
            ema_decay=config.ema_decay,
            micro_batches=config.gradient_accumulation_steps,
            on_non_finite=config.on_non_finite,
        )

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return count_elements(self.state.params)

    @functools.cached_property
    def host_constants(self) -> Any:
        """The constants of the task, as it returns them."""
        return self.task.constants()

    @functools.cached_property
    def constants(self) -> Any:
        """The constants of the task, placed like parameters."""
        return self.partitioner.place(self.host_constants)

    @functools.cached_property
    def constant_shapes(self) -> Any:
        """The shapes of the constants."""
        return jax.eval_shape(lambda: self.host_constants)

    def assets(self) -> dict[str, str]:
        """Returns {name: fingerprint} of the assets of the task and of its constants, if it has any."""
        leaves = jax.tree_util.tree_leaves_with_path(self.host_constants)
        if not leaves:
            return self.task.assets()
        hashed = hashlib.sha256()
        for path, x in leaves:
            hashed.update(f"{jax.tree_util.keystr(path)} {x.dtype} {x.shape}".encode())
            hashed.update(np.ascontiguousarray(x).tobytes())
        return self.task.assets() | {CONSTANTS: hashed.hexdigest()}

    def prepare(
        self,
        batch: Batch,
        checkpoints: CheckpointStore,
        step: int | None,
        initial_variables: Callable[[Variables], Variables] | None,
    ) -> tuple[TrainState, CompiledStep]:
        """Makes the state while a second thread compiles the step, because both take seconds.

        Args:
          batch: see `compile_step` and `check_padding`.
          checkpoints, step, initial_variables: see `make_state`.

        Returns:
          The state and the compiled step.

        Raises:
          UserError: if the state or a step needs more memory than a device has, or `make_state`,
            `compile_step` or `check_padding` raises it.
        """
        memory_errors = explain_out_of_memory(self.config.gradient_accumulation_steps)
        with memory_errors, ThreadPoolExecutor(1, "compilation") as pool:
            compiling = pool.submit(backend.keep_contexts(self.compile_step), batch)
            state = self.make_state(checkpoints, step, initial_variables)
            compiled = compiling.result()
        self.check_padding(batch, state)
        devices = f"{self.partitioner.devices} {jax.default_backend()}"
        log.info("%s parameters, %s device(s)", f"{self.parameters:,}", devices)
        return state, compiled

    def make_state(
        self,
        checkpoints: CheckpointStore,
        step: int | None,
        initial_variables: Callable[[Variables], Variables] | None,
    ) -> TrainState:
        """Restores or initializes the state to train from, and places it.

        Args:
          checkpoints: of the run.
          step: the checkpoint to restore; None initializes a new run.
          initial_variables: returns the variables of a new run, given random variables. None takes the random
            variables.

        Raises:
          UserError: see `CheckpointStore.restore` and `initialize_with`.
        """
        if step is not None:
            log.info("Resuming from step %s in %s", f"{step:,}", checkpoints.folder)
            like = self.partitioner.like(self.state)
            return self.partitioner.place(TrainState.from_items(checkpoints.restore(step, like.items())))
        if initial_variables is not None:
            return self.initialize_with(initial_variables)
        return_free_memory()
        return self.initialize()

    def initialize(self) -> TrainState:
        """Returns the first state with random variables, placed. Each device computes its part."""
        where = self.partitioner.sharding(self.state)
        initialize = jax.jit(lambda key: self._create(self.task.init(key)), out_shardings=where)
        return self.partitioner.place(initialize(self.init_key))

    def initialize_with(self, load: Callable[[Variables], Variables]) -> TrainState:
        """Returns the first state, placed on the devices, with loaded variables.

        Args:
          load: function from the random variables of the task to the variables of the state.

        Raises:
          UserError: if an array is missing or unexpected, or its shape differs from the shape in the task.
        """
        expected = {"params": self.state.params, **self.state.model_state}
        loaded = {name: {} for name in expected} | dict(load(jax.jit(self.task.init)(self.init_key)))
        check_shapes(expected, loaded, "The set of initial variables")
        # Each device gets only its part, because the whole state may not fit into the memory of one device.
        variables = jax.tree.map(np.asarray, loaded)
        create = jax.jit(
            self._create,
            in_shardings=(self.partitioner.sharding(variables),),
            out_shardings=self.partitioner.sharding(self.state),
        )
        return self.partitioner.place(create(variables))

    def compile_step(self, batch: Batch) -> CompiledStep:
        """Compiles the step for one shape of batch. Later calls with this shape use the compiled program.

        Args:
          batch: a host batch of the largest shape, so that a step that does not fit fails before the first.

        Returns:
          (the step as it is called, the compiled program).

        Raises:
          UserError: if a step needs more memory than a device has, or a loss fails, see `check_losses`.
        """
        micro_batches = self.config.gradient_accumulation_steps
        step = self.partitioner.compile(self.step, self.state, self.constant_shapes)
        shapes = self.partitioner.shapes(self.state, batch, self.constant_shapes)
        try:
            with explain_out_of_memory(micro_batches):
                compiled = step.lower(*shapes).compile()
        except UserError:
            raise
        except (TypeError, ValueError):
            self.check_losses(batch)  # names the loss in which JAX found the error
            raise
        check_memory(measure_memory(compiled), micro_batches)
        if peak_flops():
            self.step_flops = count_flops(jax.make_jaxpr(step)(*shapes)) / self.config.mesh_tensor
        return step, compiled

    def check_losses(self, batch: Batch) -> None:
        """Traces the loss of each update.

        Args:
          batch: a host batch.

        Raises:
          UserError: if shapes do not fit, such as the logits of a teacher with a different vocabulary, or an
            output breaks the contract.
        """
        variables = {"params": self.state.params, **self.state.model_state}
        constants = self.constant_shapes
        context = Context(self.state.step, self.step_key, constants)
        for learner in self.learners:
            try:
                output = jax.eval_shape(learner.loss, variables, batch, context)
            except (TypeError, ValueError) as error:
                frames = traceback.extract_tb(error.__traceback__)
                own = [f"{x.filename}:{x.lineno}" for x in frames if "site-packages" not in x.filename]
                place = own[-1] if own else "the loss"
                advice = ", and the constants (a teacher needs the model's vocabulary)" if constants else ""
                raise UserError(
                    f"The loss of the update {learner.name!r} does not fit its arguments "
                    f"({first_line(error)}, at {place}): check the shapes of the model and the batch, and "
                    f"the arguments of your own parts{advice}."
                ) from error
            check_output(output, self.state.model_state)

    def check_padding(self, batch: Batch, state: TrainState | None = None) -> None:
        """Checks that no loss counts rows of zeros, if such rows pad batches.

        Args:
          batch: a host batch.
          state: a placed state; None initializes one.

        Raises:
          UserError: if a sum or a count of a row of zeros is not 0.
        """
        if self.partitioner.devices * self.config.gradient_accumulation_steps == 1:
            return
        fetched = self.partitioner.fetch(self.initialize() if state is None else state)
        variables = {"params": fetched.params, **fetched.model_state}
        context = Context(0, self.step_key, self.partitioner.fetch(self.constants))
        check_zero_rows({learner.name: learner.loss for learner in self.learners}, variables, batch, context)

    def _create(self, variables: Variables) -> TrainState:
        return TrainState.create(variables, self.learners, self.config.ema_decay)


def check_plan(task: Task, config: TrainingConfig) -> None:
    """Checks the task of a run before its assets are made, because training a vocabulary takes minutes.

    Args:
      task: the task with assets of the predicted sizes.
      config: see `Setup`. The devices are not checked.

    Raises:
      UserError: if the parameters, gradients, averages and states of the optimizers do not fit into the
        memory of a device (activations are not counted), the learning rate has no peak, a pattern matches no
        parameter, or `check_score_names` raises.
    """
    check_score_names(task, config)
    variables = variable_shapes(task)
    learners = make_learners(task.updates(), config, make_schedule(config, task.d_model), variables["params"])
    create = functools.partial(TrainState.create, learners=learners, ema_decay=config.ema_decay)
    shards = config.mesh_fsdp * config.mesh_tensor
    _check_state_fits(jax.eval_shape(create, variables), learners, lambda tree: count_bytes(tree) // shards)


def _check_state_fits(
    state: TrainState, learners: Sequence[Learner], device_bytes: Callable[[Any], int]
) -> None:
    """Raises a UserError if the state and the gradients need more memory than a device has.

    Args:
      state: shapes of the state.
      learners: the updates of a step.
      device_bytes: returns the bytes of the largest share of a device in a tree of shapes.
    """
    gradients = jax.tree_util.tree_map_with_path(
        lambda path, x: x if any(each.trains(join_path(path)) for each in learners) else None, state.params
    )
    needed = device_bytes(state) + device_bytes(gradients)
    count = f"{count_elements(state.params):,}"
    what = f"Training {count} parameters (parameters, gradients, optimizer state, average)"
    advice = f"{advise_sizes(state.params)}. A larger training.mesh_fsdp divides the state over devices"
    check_estimate(what, needed, available_memory(), advice)


def _rate_of(schedule: Schedule, every: int, factor: float, step: int) -> Any:
    """Returns the learning rate of the newest update after `step` completed steps.

    `factor` is the factor that all its parameters share.
    """
    return factor * schedule((step - 1) // every)


def has_checkpoint(workdir: str) -> bool:
    """Returns whether the folder of a run contains a checkpoint."""
    return bool(list_steps(os.path.join(workdir, CHECKPOINT_FOLDER)))


def open_checkpoints(
    task: Task,
    config: TrainingConfig,
    workdir: str,
    guard: DirectoryGuard | None = None,
    assets: dict[str, str] | None = None,
    scores: Scores | None = None,
) -> CheckpointStore:
    """Opens the checkpoints of a run with its assets, scores and retention rules. The caller closes them.

    Args:
      task, config, workdir: task, training config and folder of the run.
      guard: guard of the run folder. Only training needs it.
      assets: see `CheckpointStore`. None means the assets of the task.
      scores: scores of the evaluations. None reads them from the run folder.
    """
    return CheckpointStore(
        os.path.join(workdir, CHECKPOINT_FOLDER),
        scores=(scores or Scores(workdir, find_best(task, config))).ranking,
        retention=Retention(config.keep, config.keep_best, config.keep_hours),
        assets=task.assets() if assets is None else assets,
        guard=guard,
    )
