"""One training step: a pure function of the train state, a batch and the constants of the task."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import flax.struct
import jax
import jax.numpy as jnp
import optax

from tfm.io.tree_paths import join_path
from tfm.training.loss_calls import check_output
from tfm.training.task import Batch, Context, Loss, SumAndCount, Variables

COUNTERS = ("count", "step")  # names of Optax's counters in the optimizer state


class TrainState(flax.struct.PyTreeNode):
    """Everything that a step changes.

    Attributes:
      step: int32 scalar, the number of completed steps.
      params: the parameters.
      opt_state: {name of an update: Optax state of the parameters that it trains}.
      model_state: {collection: tree} of the other variables, such as {"batch_stats": tree}; often empty.
      average: exponential moving average of the variables, or None. Integers of the state are
        counts and keep their newest value.
      halted: bool scalar, whether a step was not finite and further steps change nothing. Never saved.
    """

    step: jax.Array
    params: Any
    opt_state: dict[str, Any]
    model_state: dict[str, Any] = flax.struct.field(default_factory=dict)
    average: Any = None
    halted: jax.Array = flax.struct.field(default_factory=lambda: jnp.zeros((), bool))

    @classmethod
    def create(cls, variables: Variables, learners: Sequence["Learner"], ema_decay: float = 0.0) -> Self:
        """Returns the state before the first step, with an average if `ema_decay` is above 0."""
        params = variables["params"]
        model_state = {name: tree for name, tree in variables.items() if name != "params"}
        opt_state = {
            learner.name: learner.optimizer.init(split_tree(params, learner.trains)[0])
            for learner in learners
        }
        # A copy, because a step donates both.
        average = jax.tree.map(jnp.copy, dict(variables)) if ema_decay else None
        return cls(jnp.zeros((), jnp.int32), params, opt_state, model_state, average)

    def items(self) -> dict[str, Any]:
        """Returns {name: tree} of what a checkpoint holds."""
        items = {"params": self.params, "optimizer": {"step": self.step, "state": self.opt_state}}
        items |= {"model_state": self.model_state} if self.model_state else {}
        return items if self.average is None else items | {"average": self.average}

    @classmethod
    def from_items(cls, items: dict[str, Any]) -> Self:
        """Returns the state with these `items`."""
        optimizer, model_state = items["optimizer"], items.get("model_state", {})
        return cls(optimizer["step"], items["params"], optimizer["state"], model_state, items.get("average"))

    @property
    def variables(self) -> dict[str, Any]:
        """The variables to evaluate: their average if there is one."""
        return self.newest if self.average is None else self.average

    @property
    def newest(self) -> dict[str, Any]:
        """The parameters and the state after the newest step."""
        return {"params": self.params, **self.model_state}


class Learner(NamedTuple):
    """A `task.Update` whose optimizer is made and whose patterns are resolved.

    Attributes:
      loss: the loss that it descends.
      optimizer: the Optax transformation.
      name: see `task.Update`.
      trains: returns whether it trains the parameter with a path.
      every: see `task.Update`.
      salt: number that is folded into the random key; None for the only update of a step.
    """

    loss: Loss
    optimizer: optax.GradientTransformation
    name: str = "loss"
    trains: Callable[[str], bool] = lambda path: True
    every: int = 1
    salt: int | None = None

    def is_due(self, step: Any) -> Any:
        """Returns whether the step after `step` completed steps computes the update. Both may be traced."""
        return step % self.every == 0


class Sums(NamedTuple):
    """The sums over the rows of one device, or of all devices.

    Attributes:
      gradients: gradients of the loss, over the parameters that are trained. For a single term they have
        not been divided by its count.
      terms, metrics: {name: (sum, count)}, as in `LossOutput`.
    """

    gradients: Any
    terms: Any
    metrics: Any


def one_device(function: Callable) -> Callable:
    """Turns `sum_gradients` of one device's rows into the sums of all rows when there is one device."""
    return lambda *arguments: function(*arguments)[:2]


def make_train_step(
    learners: Sequence[Learner],
    rng: jax.Array,
    *,
    ema_decay: float = 0.0,
    micro_batches: int = 1,
    on_non_finite: str = "stop",
) -> Callable:
    """Makes the step of a run.

    Args:
      learners: the updates of a step, in order.
      rng: random key of the run. Step, update, device and micro-batch are folded in.
      ema_decay: decay of the moving average, for a state that has an average, see `average_rate`.
      micro_batches: number of parts of a batch whose gradients are computed one after the other and added,
        to save memory.
      on_non_finite: "stop" halts the state before a step whose loss or gradient is not finite; "skip" counts
        such a step without an update.

    Returns:
      train_step(state, batch, constants=None, *, over_rows=one_device) -> (state, metrics). `over_rows` turns
      `sum_gradients` of one device's rows into a function of all rows, see `Partitioner.over_rows`. Sums and
      counts are added over devices and micro-batches before they are divided, so that an uneven split of a
      batch gives the gradient of the whole batch. `metrics` holds (sum, count) pairs: "loss", the further
      metrics, "gradient_norm", and "skipped". A step without an update has "skipped" (1, 1) and zeros in
      all other metrics. A loss of several terms is reported as the (sum of their means, 1), and each term as
      "loss/<term>". With several updates, the metrics begin with the name of the update, and "loss" is the
      sum of their losses.
    """
    several = len(learners) > 1

    def train_step(
        state: TrainState, batch: Batch, constants: Any = None, *, over_rows: Callable = one_device
    ) -> tuple[TrainState, dict[str, SumAndCount]]:
        valid = ~state.halted
        metrics: dict[str, SumAndCount] = {}
        updates = list(compute_updates(learners, rng, state, batch, constants, over_rows, micro_batches))
        for learner, _, result in updates:
            valid = valid & result.valid
            prefix = f"{learner.name}/" if several else ""
            metrics |= {f"{prefix}{name}": pair for name, pair in result.metrics.items()}
        if several:
            metrics["loss"] = _add_means([metrics[f"{learner.name}/loss"] for learner in learners])
        last, before, result = updates[-1]
        # Only the last update is applied in here. The updates before it need no copy of the state.
        new = jax.lax.cond(
            valid,
            lambda before, state: _advance(apply_update(last, result, before)),
            lambda _, state: _skip(state),
            before,
            state,
        )
        metrics = jax.tree.map(lambda x: jnp.where(valid, x, jnp.zeros_like(x)), metrics)
        metrics["skipped"] = (1.0 - valid, jnp.ones(()))
        return new, metrics

    def _advance(state):
        average = state.average
        if average is not None:  # in this form, a frozen parameter equals its average to the last bit
            rate = average_rate(state.step, ema_decay)
            average = jax.tree.map(
                lambda mean, new: (
                    (mean + rate * (new - mean)).astype(new.dtype)
                    if jnp.issubdtype(new.dtype, jnp.inexact)
                    else new
                ),
                average,
                state.newest,
            )
        return state.replace(step=state.step + 1, average=average)

    def _skip(state):
        if on_non_finite == "stop":
            return state.replace(halted=jnp.ones((), bool))
        opt_state = {
            learner.name: _advance_counters(state.opt_state[learner.name], learner.is_due(state.step))
            for learner in learners
        }
        return state.replace(step=state.step + 1, opt_state=opt_state)

    return train_step


def average_rate(step: jax.Array, decay: float) -> jax.Array:
    """Returns the weight of the newest variables in the moving average, (1 - decay) / (1 - decay^(step + 1)).

    Adam corrects its averages for their start in the same way. The first step has the weight 1, so the random
    initial parameters do not count, and after step t step i has a weight proportional to decay^(t - i).

    Args:
      step: number of completed steps.
      decay: decay of the average, above 0 and below 1.
    """
    remainder = -jnp.expm1((step + 1) * math.log(decay))  # 1 - decay^(step + 1) would lose digits
    return jnp.minimum((1 - decay) / remainder, 1.0)  # rounding must not make it larger


class UpdateResult(NamedTuple):
    """The result of an update before it is applied.

    Attributes:
      gradients: gradients of the loss, over the parameters that the update trains.
      model_state: the new model state.
      valid: whether loss and gradients are finite and no count is negative.
      metrics: {name: (sum, count)}.
    """

    gradients: Any
    model_state: Any
    valid: jax.Array
    metrics: dict[str, SumAndCount]


def make_context(learner: Learner, rng: jax.Array, step: Any, constants: Any = None) -> Context:
    """Returns the context of an update, before the keys of devices and micro-batches are folded in.

    Args:
      learner: the update.
      rng: random key of the steps of the run.
      step: number of completed steps.
      constants: the constants of the task.
    """
    key = jax.random.fold_in(rng, step)
    if learner.salt is not None:
        key = jax.random.fold_in(key, learner.salt)
    return Context(step, key, constants)


def compute_updates(
    learners: Sequence[Learner],
    rng: jax.Array,
    state: TrainState,
    batch: Batch,
    constants: Any,
    over_rows: Callable,
    micro_batches: int,
) -> Iterator[tuple[Learner, TrainState, UpdateResult]]:
    """Computes the updates of a step in order, each after the changes of the updates before it.

    Args:
      learners, rng, micro_batches: see `make_train_step`.
      state, batch, constants, over_rows: see the step that `make_train_step` returns.

    Yields:
      (learner, state before its update, result of its update). The last update is not applied.
    """
    for learner in learners:
        context = make_context(learner, rng, state.step, constants)
        result = _compute_update(learner, state, batch, context, over_rows, micro_batches)
        yield learner, state, result
        if learner is not learners[-1]:
            state = apply_update(learner, result, state)


def _compute_update(
    learner: Learner,
    state: TrainState,
    batch: Batch,
    context: Context,
    over_rows: Callable,
    micro_batches: int,
) -> UpdateResult:
    """Returns the result of an update. All numbers are zero in a step in which the update is not due."""

    def compute(state):
        sum_rows = over_rows(functools.partial(sum_gradients, learner, micro_batches=micro_batches))
        trained, fixed = split_tree(state.params, learner.trains)
        sums, model_state = sum_rows(trained, fixed, state.model_state, batch, context)
        loss, gradients = loss_of(sums.terms), sums.gradients
        if len(sums.terms) == 1:
            divisor = find_divisor(loss[1])
            gradients = jax.tree.map(lambda x: x / divisor, gradients)
        norm = optax.tree.norm(gradients)
        counts = jnp.stack([count for _, count in sums.terms.values()])
        valid = jnp.isfinite(loss[0]) & jnp.isfinite(norm) & (counts.min() >= 0)
        metrics = {**sums.metrics, "loss": loss, "gradient_norm": (norm, jnp.ones(()))}
        if len(sums.terms) > 1:
            metrics |= {f"loss/{name}": pair for name, pair in sums.terms.items()}
        return UpdateResult(gradients, model_state, valid, metrics)

    def wait(state):
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(compute, state))
        return zeros._replace(model_state=state.model_state, valid=jnp.ones((), bool))

    return _if_due(learner, compute, wait, state)


def apply_update(learner: Learner, result: UpdateResult, state: TrainState) -> TrainState:
    """Returns the state after an update, or the same state in a step in which the update is not due."""

    def apply(state):
        trained, fixed = split_tree(state.params, learner.trains)
        old = state.opt_state[learner.name]
        updates, opt_state = learner.optimizer.update(result.gradients, old, trained)
        return state.replace(
            params=merge_trees(optax.apply_updates(trained, updates), fixed),
            model_state=result.model_state,
            opt_state=state.opt_state | {learner.name: opt_state},
        )

    return _if_due(learner, apply, keep, state)


def _if_due(learner: Learner, function: Callable, otherwise: Callable, state: TrainState) -> Any:
    """Calls `function` with the state in each step in which the update is due, `otherwise` in the others."""
    if learner.every == 1:
        return function(state)
    return jax.lax.cond(learner.is_due(state.step), function, otherwise, state)


def keep(tree: Any) -> Any:
    """Returns a tree as it is, in place of an update or of a sum over devices."""
    return tree


def sum_gradients(
    learner: Learner,
    trained: Any,
    fixed: Any,
    model_state: Any,
    batch: Batch,
    context: Context,
    *,
    micro_batches: int = 1,
    gather: Callable[[Any], contextlib.AbstractContextManager] = contextlib.nullcontext,
) -> tuple[Sums, Any, jax.Array]:
    """Adds up gradients, terms and metrics over the rows of one device.

    Args:
      learner: the update.
      trained, fixed: the two parts of the parameters, see `split_tree`.
      model_state: {collection: tree}. It passes through the micro-batches.
      batch: rows of this device.
      context: its `row_axes` are the axes over which the rows are divided.
      micro_batches: see `make_train_step`.
      gather: returns a context with whole parameters, if `trained` and `fixed` are the shards of a device.

    Returns:
      (the `Sums`, the new model state, whether any row of this device counts).

    Raises:
      UserError: see `check_output`.
    """

    def evaluate(trained, model_state, rows, key):
        with gather(merge_trees(trained, fixed)) as params:
            variables = {"params": params, **model_state}
            output = check_output(learner.loss(variables, rows, context.replace(rng=key)), model_state)
        return output, {**model_state, **output.state}

    def add_over_rows(counts):
        return jax.lax.psum(counts, context.row_axes)

    if micro_batches == 1:
        return _differentiate(evaluate, trained, model_state, batch, context.rng, add_over_rows)
    parts = split_rows(batch, micro_batches)
    return _sum_parts(evaluate, trained, model_state, parts, context.rng, add_over_rows)


def _sum_parts(
    evaluate: Callable,
    trained: Any,
    model_state: Any,
    parts: Any,
    rng: Any,
    add_over_rows: Callable,
) -> tuple[Sums, Any, jax.Array]:
    """Returns the output of `sum_gradients` for micro-batches, which are computed one after the other.

    Args:
      evaluate, trained, model_state: see `_differentiate`.
      parts: the rows of the micro-batches, see `split_rows`.
      rng: random key, into which the index of a micro-batch is folded.
      add_over_rows: adds counts over the devices that divide the rows.
    """
    first = jax.tree.map(lambda x: x[0], parts)
    gradient = functools.partial(_differentiate, evaluate, trained)
    shapes = jax.eval_shape(lambda: gradient(model_state, first, rng, keep)[0])
    counts: Any = None
    if len(shapes.terms) > 1:  # XLA removes everything from this pass on which the counts do not depend

        def count(rows):
            terms = evaluate(trained, model_state, rows, rng)[0].terms
            return {name: jnp.asarray(count, jnp.float32) for name, (_, count) in terms.items()}

        counts = add_over_rows(jax.tree.map(lambda x: x.sum(0), jax.lax.map(count, parts)))

    def add(carry, part):
        total, model_state, any_present = carry
        rows, index = part
        key = jax.random.fold_in(rng, index)
        sums, model_state, present = gradient(model_state, rows, key, lambda _: counts)
        return (jax.tree.map(jnp.add, total, sums), model_state, any_present | present), None

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    start = zeros, model_state, jnp.zeros((), bool)
    indices = jnp.arange(len(jax.tree.leaves(parts)[0]))
    return jax.lax.scan(add, start, (parts, indices))[0]


def _differentiate(
    evaluate: Callable,
    trained: Any,
    model_state: Any,
    rows: Batch,
    key: jax.Array | None,
    count_all: Callable,
) -> tuple[Sums, Any, jax.Array]:
    """Returns the output of `sum_gradients` for some rows.

    Args:
      evaluate: returns (`LossOutput`, new model state) of the arguments trained, model_state, rows and key.
      trained, model_state: see `sum_gradients`.
      rows, key: a batch, and the random key of its dropout.
      count_all: adds counts over all rows of the step.
    """

    def term_sums(trained):
        output, new_state = evaluate(trained, model_state, rows, key)
        totals = {name: total for name, (total, _) in output.terms.items()}
        return totals, (output.terms, output.metrics, new_state)

    totals, pull_back, (terms, metrics, new_state) = jax.vjp(term_sums, trained, has_aux=True)
    (gradients,) = pull_back(_term_weights(totals, terms, count_all))
    present = (jnp.stack([count for _, count in terms.values()]) != 0).any()
    sums = Sums(gradients, terms, metrics)
    if model_state:  # statistics of nothing but padding may be nan
        sums = _choose(present, sums, jax.tree.map(jnp.zeros_like, sums))
        new_state = _choose(present, new_state, model_state)
    return sums, new_state, present


def _term_weights(
    totals: Mapping[str, jax.Array], terms: Mapping[str, SumAndCount], count_all: Callable
) -> Any:
    """Returns the factor of each term in the loss: 1 for a single term. Its gradients are divided later.

    Args:
      totals: {name: sum}.
      terms: {name: (sum, count)} of these rows.
      count_all: turns the counts of these rows into the counts of all rows of the step.
    """
    if len(terms) == 1:
        return jax.tree.map(jnp.ones_like, totals)
    counts = count_all({name: count for name, (_, count) in terms.items()})
    return {name: (1 / find_divisor(counts[name])).astype(total.dtype) for name, total in totals.items()}


def loss_of(terms: Mapping[str, SumAndCount]) -> SumAndCount:
    """Returns the loss as (sum, count): the pair of a single term, or (sum of the means of several, 1)."""
    if len(terms) == 1:
        (pair,) = terms.values()
        return pair
    return _add_means(terms.values())


def find_divisor(count: jax.Array | float) -> jax.Array:
    """Returns what a sum is divided by: its count, or 1 if nothing counts."""
    return jnp.where(count > 0, count, 1)


def _add_means(pairs: Iterable[SumAndCount]) -> SumAndCount:
    """Returns (sum of the means, 1) of several pairs. A pair that counts nothing adds nothing."""
    return jnp.stack([total / find_divisor(count) for total, count in pairs]).sum(), jnp.ones(())


def split_rows(batch: Batch, parts: int) -> Any:
    """Splits arrays [rows, ...] into [parts, rows / parts, ...], after padding them with rows of zeros.

    Row r goes to part r modulo `parts`, so that each part has its share of the rows of each device.
    """

    def split(x):
        padded = jnp.pad(x, [(0, -len(x) % parts), *[(0, 0)] * (x.ndim - 1)])
        return padded.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1)

    return jax.tree.map(split, batch)


def split_tree(tree: Any, is_wanted: Callable[[str], bool]) -> tuple[Any, Any]:
    """Returns the leaves whose paths are wanted, and the others, as two trees with None for the rest."""
    wanted = jax.tree_util.tree_map_with_path(lambda path, _: is_wanted(join_path(path)), tree)
    return (
        jax.tree.map(lambda x, chosen: x if chosen else None, tree, wanted),
        jax.tree.map(lambda x, chosen: None if chosen else x, tree, wanted),
    )


def merge_trees(one: Any, other: Any) -> Any:
    """Returns the tree that `split_tree` divided into these two."""
    return jax.tree.map(lambda a, b: b if a is None else a, one, other, is_leaf=lambda x: x is None)


def _choose(condition: jax.Array, new: Any, old: Any) -> Any:
    """Returns the arrays of `new` where the condition is True, and of `old` elsewhere."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)


def _advance_counters(opt_state: Any, is_due: jax.Array) -> Any:
    """Counts a step without an update: the schedule reads the counters of the optimizer state.

    Counters are recognized by their names, because the state may hold other integers, such as quantized
    moments.
    """

    def advance(path, x):
        name = jax.tree_util.keystr(path[-1:], simple=True)
        is_counter = name in COUNTERS and x.ndim == 0 and jnp.issubdtype(x.dtype, jnp.integer)
        return x + is_due.astype(x.dtype) if is_counter else x

    return jax.tree_util.tree_map_with_path(advance, opt_state)
