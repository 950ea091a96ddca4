"""Diagnoses a non-finite step: finds its first non-finite tensor."""

import inspect
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tfm.devices.mesh import fetch
from tfm.errors import UserError, first_line
from tfm.io.tree_paths import join_path
from tfm.training.setup import Setup
from tfm.training.step import Learner, make_context, merge_trees, split_rows, split_tree
from tfm.training.task import Batch, Context, Data, Loss, SumAndCount, Variables


def explain(setup: Setup, data: Data, workdir: str, state: Any, step: int, batch: Batch) -> UserError:
    """Finds the first non-finite tensor of a step without an update. All hosts call it.

    Args:
      setup, data, workdir: of the run.
      state: the placed state before the step; if steps are skipped, the state after it.
      step: counted from 1.
      batch: of this host.

    Returns:
      The `UserError` to raise. It names the tensor, or the RuntimeError that prevented finding it.
    """
    try:
        culprit = _find_culprit(setup, state, step, batch)
    except RuntimeError as error:  # of XLA: one device may not hold what several did
        culprit = f"not found ({first_line(error)})"
    skip = ", or skip such batches with training.on_non_finite=skip"
    return UserError(
        f"The loss or gradient of step {step:,} is not finite; the first tensor that is not: {culprit}. "
        f"The batch: {reprlib.repr(data.describe_batch(step - 1))}. Lower training.learning_rate_scale or "
        f"fix the data{skip if setup.config.on_non_finite == 'stop' else ''}. After a checkpoint, "
        f"tfm replay --workdir={workdir} --step={step} --output=step.npz writes the batch and the gradients."
    )


def _find_culprit(setup: Setup, state: Any, step: int, batch: Batch) -> str:
    """Returns the name of the first tensor that is not finite. Examines each update from the same state."""
    constants = fetch(setup.partitioner.fetch(setup.constants))
    fetched = setup.partitioner.fetch(state)
    variables = fetch({"params": fetched.params, **fetched.model_state})
    variables = jax.device_put(variables, jax.local_devices()[0])
    for learner in setup.learners:
        if not learner.is_due(step - 1):
            continue
        culprit = first_not_finite(learner, variables, split_step(setup, learner, step, batch, constants))
        if culprit:
            return culprit if len(setup.learners) == 1 else f"{culprit} (in the update {learner.name!r})"
    return "none when the parts are computed again: only their sum is not finite, or results vary"


def split_step(
    setup: Setup, learner: Learner, step: int, batch: Batch, constants: Any = None
) -> list[tuple[Batch, Context]]:
    """Splits the rows of a host into the micro-batches of an update, with the random keys of the step.

    Args:
      setup: setup of the run.
      learner: the update.
      step: number of the step, counted from 1.
      batch: batch of this host.
      constants: one copy of the constants of the task.
    """
    context = make_context(learner, setup.step_key, step - 1, constants)
    count = setup.config.gradient_accumulation_steps
    if count == 1:
        return [(batch, context)]
    rows = split_rows(batch, count)
    keys = [jax.random.fold_in(cast(jax.Array, context.rng), index) for index in range(count)]
    return [
        ({name: x[index] for name, x in rows.items()}, context.replace(rng=key))
        for index, key in enumerate(keys)
    ]


def first_not_finite(
    learner: Learner, variables: Variables, micro_batches: Iterable[tuple[Batch, Context]]
) -> str | None:
    """Returns a description of the first tensor that is not finite, or of a negative count, or None.

    A description is, for example, "output of decoder/layers_0 (__call__)" or "gradient of decoder/norm/scale
    and 3 more".

    Examines the variables first. For each micro-batch, it then examines the outputs of the modules as they
    are computed, the loss and its terms, and the gradients.

    Args:
      learner: the update.
      variables: variables on one device, which computes the rows of all devices of this host.
      micro_batches: micro-batches with their contexts, see `split_step`.
    """
    for collection, tree in variables.items():
        if bad := _names(tree):
            return f"{'parameter' if collection == 'params' else collection} {_several(bad)}"
    trained, fixed = split_tree(variables["params"], learner.trains)
    state = {name: tree for name, tree in variables.items() if name != "params"}

    @jax.jit
    def gradient(trained, rows, context):
        def loss_sum(trained):
            output = learner.loss({"params": merge_trees(trained, fixed), **state}, rows, context)
            return sum(total for total, _ in output.terms.values())

        return jax.grad(loss_sum)(trained)

    for rows, context in micro_batches:
        try:
            terms = _look_into_modules(learner.loss, variables, rows, context)
        except _NotFinite as output:
            return f"output of {output}"
        for name, (total, count) in terms.items():
            term = name if len(terms) == 1 else f"term {name!r} of the loss"
            if not _finite(total):
                return f"{term}, {float(total)}"
            if not count >= 0:
                return f"count of {term}, {float(count)}: a count must not be negative"
        if bad := _names(gradient(trained, rows, context)):
            return f"gradient of {_several(bad)}"
    return None


class _NotFinite(Exception):
    """The first method of a Flax module with an output that is not finite."""


def _look_into_modules(
    loss: Loss, variables: Variables, batch: Batch, context: Context
) -> Mapping[str, SumAndCount]:
    """Returns the terms of the loss, or raises `_NotFinite`.

    Nothing is compiled as a whole, so that outputs have values. Inside of what Flax compiles all the same
    (remat, scan) they have none, and the module around it is named.
    """

    def look(method, args, kwargs, call):
        output = method(*args, **kwargs)
        if not inspect.isgenerator(output) and not _finite(output):
            path = "/".join(call.module.path) or type(call.module).__name__
            raise _NotFinite(f"{path} ({call.method_name})")
        return output

    with nn.intercept_methods(look):
        return loss(variables, batch, context).terms


def _finite(tree: Any) -> bool:
    """Returns whether all floats of a tree are finite. NumPy decides this without compiling a program."""
    return all(
        np.isfinite(x).all()
        for x in jax.tree.leaves(tree)
        if isinstance(x, jax.Array | np.ndarray)
        and not isinstance(x, jax.core.Tracer)
        and jnp.issubdtype(x.dtype, jnp.floating)
    )


def _names(tree: Any) -> list[str]:
    """Returns the paths of the leaves that are not finite."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [join_path(path) for path, x in leaves if not _finite(x)]


def _several(names: Sequence[str]) -> str:
    """Returns the first of some names, and how many follow."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
