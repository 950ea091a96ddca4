"""Sums of metrics over steps and batches."""

from collections.abc import Mapping

from tfm.training.task import SumAndCount


def add_sums(sums: dict[str, tuple[float, float]], metrics: Mapping[str, SumAndCount]) -> None:
    """Adds the (sum, count) pairs of a step or a batch to `sums` in place, as Python floats."""
    for name, (total, count) in metrics.items():
        old_total, old_count = sums.get(name, (0.0, 0.0))
        sums[name] = (old_total + float(total), old_count + float(count))


def means(sums: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Returns {name: sum / count}. Leaves out names with count 0, for example if all steps were skipped."""
    return {name: total / count for name, (total, count) in sums.items() if count}
