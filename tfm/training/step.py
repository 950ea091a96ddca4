"""One update: a pure function of state and batch."""

import reprlib
from collections.abc import Callable
from typing import Any, Self

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from tfm.errors import UserError
from tfm.training.task import Batch

COUNTERS = ("count", "step")  # in the optimizer's state, as Optax names them


class TrainState(flax.struct.PyTreeNode):
    """All that an update changes.

    Attributes:
      step: int32 scalar, updates made.
      params: the model's parameters.
      opt_state: Optax's.
      average: exponential moving average of the parameters, or None.
      halted: bool scalar: a step was not finite, and no further one changes anything. Never in a checkpoint.
    """

    step: jax.Array
    params: Any
    opt_state: Any
    average: Any = None
    halted: jax.Array = flax.struct.field(default_factory=lambda: jnp.zeros((), bool))

    @classmethod
    def create(cls, params: Any, optimizer: optax.GradientTransformation, ema_decay: float = 0.0) -> Self:
        """The state before the first update; with an average where `ema_decay` is above 0."""
        return cls(jnp.zeros((), jnp.int32), params, optimizer.init(params), params if ema_decay else None)

    def items(self) -> dict[str, Any]:
        """The items of its checkpoint, by name."""
        items = {"params": self.params, "optimizer": {"step": self.step, "state": self.opt_state}}
        return items if self.average is None else items | {"average": self.average}

    @classmethod
    def from_items(cls, items: dict[str, Any]) -> Self:
        """The state of which `items` were saved."""
        optimizer = items["optimizer"]
        return cls(optimizer["step"], items["params"], optimizer["state"], items.get("average"))

    def with_params(self, params: Any) -> Self:
        """This state, before its first update, with other parameters."""
        average = None if self.average is None else jax.tree.map(jnp.copy, params)
        return self.replace(params=params, average=average)

    @property
    def weights(self) -> Any:
        """The parameters to evaluate: the average where there is one."""
        return self.params if self.average is None else self.average


def make_train_step(
    loss: Callable,
    optimizer: optax.GradientTransformation,
    rng: jax.Array,
    ema_decay: float = 0.0,
    gradient_accumulation_steps: int = 1,
    on_non_finite: str = "stop",
) -> Callable:
    """The update of one task.

    Args:
      loss: (params, batch, rng) -> (sum, count), metrics; metrics a dict of further (sum, count) pairs. The
        update descends the gradient of sum / count.
      optimizer: an Optax transformation.
      rng: the run's random key; step and device index are folded in.
      ema_decay: of the average, for a state that has one.
      gradient_accumulation_steps: parts of a batch whose gradients are computed one after the other and
        added, to save memory.
      on_non_finite: what a loss or gradient that is not finite does: "stop" halts the state as it was before,
        "skip" makes the step without an update.

    Returns:
      train_step(state, batch, *, distribute=None) -> (state, metrics). `distribute` takes the function
      (params, batch, key) -> (gradients, metrics) of a device's part of the batch and returns that of the
      whole batch, in which gradients and metrics are added over devices; None is for one device. Sums and
      counts are added before the one division, so that an uneven split of a batch gives the gradient of the
      whole. metrics holds (sum, count) pairs, "loss" among them, the gradient's norm, and "skipped": (1, 1)
      where there was no update, and then all others are (0, 0).
    """

    def sum_gradients(params, batch, key):
        def gradients_of(batch, key):
            def loss_sum(params):
                (total, count), metrics = check_loss(loss(params, batch, key))
                return total, metrics | {"loss": (total, count)}

            return jax.grad(loss_sum, has_aux=True)(params)

        if gradient_accumulation_steps == 1:
            return gradients_of(batch, key)
        return _accumulate(gradients_of, _split(batch, gradient_accumulation_steps), key)

    def train_step(state, batch, *, distribute=None):
        key = jax.random.fold_in(rng, state.step)
        summed = distribute(sum_gradients) if distribute else sum_gradients
        gradients, metrics = summed(state.params, batch, key)
        divisor = find_divisor(metrics["loss"][1])
        gradients = jax.tree.map(lambda gradient: gradient / divisor, gradients)
        metrics["gradient_norm"] = (optax.tree.norm(gradients), jnp.ones(()))
        finite = jnp.isfinite(metrics["loss"][0]) & jnp.isfinite(metrics["gradient_norm"][0]) & ~state.halted
        metrics = jax.tree.map(lambda x: jnp.where(finite, x, jnp.zeros_like(x)), metrics)
        metrics["skipped"] = (1.0 - finite, jnp.ones(()))
        return jax.lax.cond(finite, update, skip, state, gradients), metrics

    def update(state, gradients):
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        average = None
        if state.average is not None:
            # In this form, what is frozen is its own average to the last bit.
            average = jax.tree.map(
                lambda mean, new: mean + (1 - ema_decay) * (new - mean), state.average, params
            )
        return TrainState(state.step + 1, params, opt_state, average, state.halted)

    def skip(state, gradients):
        if on_non_finite == "stop":
            return state.replace(halted=jnp.ones((), bool))
        return state.replace(
            step=state.step + 1, opt_state=jax.tree_util.tree_map_with_path(_advance_counter, state.opt_state)
        )

    return train_step


def _advance_counter(path, x):
    """A step without an update counts: the schedule goes by the counters of the optimizer's state.

    They are known by their names, as a state may hold other integers, such as quantized moments.
    """
    name = jax.tree_util.keystr(path[-1:], simple=True)
    is_counter = name in COUNTERS and x.ndim == 0 and jnp.issubdtype(x.dtype, jnp.integer)
    return x + 1 if is_counter else x


def split_batch(
    batch: Batch, key: jax.Array, devices: int, gradient_accumulation_steps: int
) -> list[tuple[Batch, jax.Array]]:
    """Splits batch and key of a host into those of its devices and micro-batches, as `train_step` does.

    The keys are those of jit and pmap; under a mesh one mask of dropout is drawn for all devices.

    Returns:
      list of (batch, key).
    """
    split = {name: np.split(pad_rows(x, devices), devices) for name, x in batch.items()}
    keys = [key] if devices == 1 else [jax.random.fold_in(key, device) for device in range(devices)]
    found: list[tuple[Batch, jax.Array]]
    found = [({name: x[device] for name, x in split.items()}, own) for device, own in enumerate(keys)]
    if gradient_accumulation_steps == 1:
        return found
    return [
        (
            {name: x[index] for name, x in _split(share, gradient_accumulation_steps).items()},
            jax.random.fold_in(own, index),
        )
        for share, own in found
        for index in range(gradient_accumulation_steps)
    ]


def find_divisor(count: jax.Array | float) -> jax.Array:
    """What the sum of a loss and its gradients are divided by: the count; 1 where nothing counts."""
    return jnp.where(count > 0, count, 1)


def check_loss(found: Any) -> Any:
    """What the loss of a task returned, once its form is checked, see `make_train_step`.

    Raises:
      UserError: it is not (sum, count), {name: (sum, count)} of scalars, the loss of a float type.
    """
    try:
        pair, metrics = found
        numbers = [number for total, count in (pair, *metrics.values()) for number in (total, count)]
        fits = jnp.issubdtype(jnp.result_type(pair[0]), jnp.floating) and not any(map(jnp.shape, numbers))
    except (AttributeError, TypeError, ValueError):
        fits = False
    if not fits:
        shapes = jax.tree.map(lambda leaf: getattr(leaf, "shape", leaf), found)
        raise UserError(
            "Expected the task's loss to return (sum, count), {name: (sum, count)} of scalars, the sum of "
            f"the loss of a float type, got the shapes {reprlib.repr(shapes)}: correct the loss."
        )
    return found


def check_zero_rows(loss: Callable, params: Any, batch: Batch) -> None:
    """Checks that rows of zeros do not count, so that the loss does not depend on the number of devices.

    Args:
      loss: see `make_train_step`; called without a random key.
      params: of the model.
      batch: a host batch, of which one row of zeros is made.

    Raises:
      UserError: a sum or a count of a row of zeros is not 0.
    """
    row = {name: np.zeros((1, *np.shape(x)[1:]), x.dtype) for name, x in batch.items()}
    pair, metrics = check_loss(jax.jit(loss)(params, row, None))
    for name, (total, count) in ({"loss": pair} | metrics).items():
        if total != 0 or count != 0:
            raise UserError(
                f"A batch is padded with rows of zeros to a multiple of the devices and micro-batches. "
                f"Expected sum 0 and count 0 of such a row, got sum {float(total):.4g} and count "
                f"{float(count):.4g} of {name!r}: give padding weight 0 in the task's loss."
            )


def pad_rows(x: np.ndarray, count: int) -> np.ndarray:
    """Pads with rows of zeros to a multiple of `count`; the loss must not count an all-zero row."""
    return np.pad(x, [(0, -len(x) % count)] + [(0, 0)] * (x.ndim - 1))


def _split(batch, parts):
    """[rows, ...] -> [parts, rows / parts, ...], padded with zero rows.

    Neighbours go to different parts, so that each part has its share of the rows of each device.
    """

    def split(x):
        padded = jnp.pad(x, [(0, -len(x) % parts), *[(0, 0)] * (x.ndim - 1)])
        return padded.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1)

    return jax.tree.map(split, batch)


def _accumulate(function, parts, key):
    """The sum of function(part, key of its own) over the leading axis of `parts`."""

    def add(total, part_and_index):
        part, index = part_and_index
        return jax.tree.map(jnp.add, total, function(part, jax.random.fold_in(key, index))), None

    first = jax.tree.map(lambda x: x[0], parts)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function, first, key))
    count = len(jax.tree.leaves(parts)[0])
    return jax.lax.scan(add, zeros, (parts, jnp.arange(count)))[0]
