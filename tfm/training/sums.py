"""Sums of metrics over steps and batches."""

import functools
from collections.abc import Iterable, Mapping

import jax

from tfm.devices.mesh import place_rows
from tfm.training.task import Batch, Context, SumAndCount, Task, Variables


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
    sums: dict[str, tuple[float, float]] = {}
    for batch in batches:
        add_sums(sums, _compute_metrics(task, variables, place_rows(batch, like=variables)))
    return means(sums)


@functools.partial(jax.jit, static_argnums=0)
def _compute_metrics(task: Task, variables: Variables, batch: Batch) -> Mapping[str, SumAndCount]:
    """Returns the metrics of the loss of a batch."""
    return task.loss(variables, batch, Context()).metrics
