"""The loss of a task: the call of its model, checks of what it returns, and sums of its metrics."""

import functools
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from tfm.devices.mesh import place_copies, place_rows
from tfm.errors import UserError
from tfm.io.tree_paths import join_path
from tfm.layers.loss_terms import LOSS_TERMS
from tfm.training.task import Batch, Context, Loss, LossOutput, SumAndCount, Task, Variables

RESERVED = ("loss", "gradient_norm", "skipped")  # names of metrics that a step reports by itself


def apply_model(
    model: nn.Module, variables: Variables, *inputs: Any, context: Context, **keywords: Any
) -> tuple[Any, Mapping[str, Any]]:
    """Calls a model as a loss calls it: with dropout, loss terms and updates of its state in training only.

    Args:
      model: a Linen module whose call has the argument `train`.
      variables: "params" and the collections of its state, if it has any.
      inputs, keywords: further arguments of the model.
      context: the `Context` that the loss received.

    Returns:
      (output of the model, state for `LossOutput`: {collection: tree} of what changed, and the terms that
      modules of the model add, see `tfm.layers.loss_terms`).
    """
    if not context.train:
        return model.apply(variables, *inputs, train=False, **keywords), {}
    collections = [name for name in variables if name != "params"]
    keywords |= {"train": True, "rngs": {"dropout": context.rng}, "mutable": [*collections, LOSS_TERMS]}
    return model.apply(variables, *inputs, **keywords)


def add_sums(sums: dict[str, tuple[float, float]], metrics: Mapping[str, SumAndCount]) -> None:
    """Adds the (sum, count) pairs of a step or a batch to `sums` in place, as Python floats."""
    for name, (total, count) in metrics.items():
        old_total, old_count = sums.get(name, (0.0, 0.0))
        sums[name] = (old_total + float(total), old_count + float(count))


def means(sums: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Returns {name: sum / count}. Leaves out names with count 0, for example if all steps were skipped."""
    return {name: total / count for name, (total, count) in sums.items() if count}


def mean_metrics(task: Task, variables: Variables, batches: Iterable[Batch]) -> dict[str, float]:
    """Returns the means of the metrics of a task's loss, without dropout, over all rows of host batches."""
    return mean_loss_and_metrics(task, variables, batches)[1]


def mean_loss_and_metrics(
    task: Task, variables: Variables, batches: Iterable[Batch]
) -> tuple[float, dict[str, float]]:
    """Computes a task's loss, without dropout, over all rows of host batches.

    Returns:
      (the sum of the means of the loss's terms, the means of the metrics). Terms that modules add to the
      loss belong to the training alone.
    """
    terms: dict[str, tuple[float, float]] = {}
    metrics: dict[str, tuple[float, float]] = {}
    constants = place_copies(task.constants(), like=variables)
    for batch in batches:
        output = _compute_loss(task, variables, place_rows(batch, like=variables), constants)
        add_sums(terms, output.terms)
        add_sums(metrics, output.metrics)
    return sum(means(terms).values()), means(metrics)


@functools.partial(jax.jit, static_argnums=0)
def _compute_loss(task: Task, variables: Variables, batch: Batch, constants: Any) -> LossOutput:
    """Returns the loss of a batch, without the state."""
    return task.loss(variables, batch, Context(constants=constants))._replace(state={})


def check_output(output: Any, model_state: Mapping[str, Any]) -> LossOutput:
    """Checks the output of a loss and returns it with arrays in place of Python's numbers.

    Terms that modules of the model have added move from the state to the terms.

    Args:
      output: what the loss returned.
      model_state: {collection: tree} that it was given.

    Raises:
      UserError: if it is no `LossOutput` with a term, a sum or count is no scalar, the sum of a term has no
        float type, a metric has a reserved name, or a collection has changed its names, shapes or dtypes.
    """
    if not isinstance(output, LossOutput) or not output.terms:
        raise UserError(
            "Expected the task's loss to return a LossOutput with at least one term, "
            f"got {_describe(output)}: correct the loss."
        )
    state = dict(output.state)
    terms = {**output.terms, **flatten_dict(state.pop(LOSS_TERMS, {}), sep=".")}
    for kind, pairs in (("term", terms), ("metric", output.metrics)):
        for name, pair in pairs.items():
            _check_pair(kind, name, pair)
    for name in (name for name in RESERVED if name in output.metrics):
        raise UserError(f"The metric {name!r} of the task's loss has a reserved name: give it another name.")
    for name, tree in state.items():
        _check_collection(name, tree, model_state)
    return LossOutput(*jax.tree.map(jnp.asarray, (terms, dict(output.metrics), state)))


def check_zero_rows(losses: Mapping[str, Loss], variables: Variables, batch: Batch, context: Context) -> None:
    """Checks that rows of zeros do not count, so that a loss does not depend on the number of devices.

    Args:
      losses: {name of an update: its loss}, called as training calls it.
      variables: of the model.
      batch: a host batch, from whose shapes a row of zeros is made.
      context: of the first step.

    Raises:
      UserError: if a sum or a count of a row of zeros is not 0. The sum may be NaN if the model has a state,
        because a count of 0 keeps such a sum out of every step.
    """
    row = {name: np.zeros((1, *np.shape(x)[1:]), x.dtype) for name, x in batch.items()}
    state = {name: tree for name, tree in variables.items() if name != "params"}

    @jax.jit
    def compute(variables, row, context):
        outputs = {name: check_output(loss(variables, row, context), state) for name, loss in losses.items()}
        return {name: {**output.metrics, **output.terms} for name, output in outputs.items()}

    for update, pairs in compute(variables, row, context).items():
        for name, (total, count) in pairs.items():
            # The sum of a state's statistics may be nan, which a count of 0 keeps out of every step.
            if count != 0 or (total != 0 and not (state and np.isnan(total))):
                raise UserError(
                    "A batch is padded with rows of zeros to a multiple of the devices and micro-batches. "
                    f"Expected sum 0 and count 0 of such a row, got sum {float(total):.4g} and count "
                    f"{float(count):.4g} of {name!r} in the update {update!r}: give padding weight 0 in the "
                    "task's loss."
                )


def _check_pair(kind: str, name: Any, pair: Any) -> None:
    is_pair = isinstance(pair, Sequence) and len(pair) == 2
    if not is_pair or any(np.shape(number) != () for number in pair):
        raise UserError(
            f"Expected the {kind} {name!r} of the task's loss to be (sum, count) of two scalars, "
            f"got {_describe(pair)}: correct the loss."
        )
    dtype = jnp.result_type(pair[0])
    if kind == "term" and not jnp.issubdtype(dtype, jnp.floating):
        raise UserError(
            f"Expected the sum of the term {name!r} of the task's loss to be of a float type, got {dtype}: "
            "correct the loss."
        )


def _check_collection(name: str, tree: Any, model_state: Mapping[str, Any]) -> None:
    new, old = _shapes(tree), _shapes(model_state.get(name, {}))
    for path in sorted(new.keys() | old.keys()):
        if new.get(path) != old.get(path):
            raise UserError(
                f"Expected the state {name!r} to keep its shapes, but {path or name} was "
                f"{old.get(path, 'absent')} and the task's loss returned {new.get(path, 'absent')}: return "
                "the whole collection in the form in which `init` made it."
            )


def _shapes(tree: Any) -> dict[str, str]:
    return {
        join_path(path): f"{jnp.result_type(x)}{list(jnp.shape(x))}"
        for path, x in jax.tree_util.tree_leaves_with_path(tree)
    }


def _describe(value: Any) -> str:
    """Returns a short text of a value, with shapes in place of arrays."""
    shapes = jax.tree.map(lambda leaf: getattr(leaf, "shape", leaf), value)
    return f"{type(value).__name__} {reprlib.repr(shapes)}"
