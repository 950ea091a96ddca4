"""The plan of a sweep: the config and number of parameters of each run before it starts."""

import functools
import os
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from tfm import tasks
from tfm.devices.backend import compile_for
from tfm.devices.memory import count_elements
from tfm.sweep.variants import Variant
from tfm.training.task import variable_shapes


class PlannedRun(NamedTuple):
    """A planned run of a sweep.

    Attributes:
      variant: the variant that the run trains.
      seed: seed of the initialization, the dropout and the order of the data.
      config: the config, a frozen dataclass of its task.
      workdir: the folder of the run.
      arguments: arguments of `tfm train`, without --workdir.
    """

    variant: Variant
    seed: int
    config: Any
    workdir: str
    arguments: Sequence[str]

    @property
    def name(self) -> str:
        """The name of the variant with the seed, for messages."""
        return f"{self.variant.name} seed {self.seed}"


@functools.cache  # tracing a model takes a second
def count_parameters(config: Any) -> int | None:
    """Returns the number of parameters of the model of a config, for the vocabulary size of the config.

    Returns None if the task has no `plan`.
    """
    plan = getattr(tasks.find(config.task), "plan", None)
    if plan is None:
        return None
    # The plan leaves the devices to the runs. Only the implementations for CPUs ask for the devices at hand.
    with compile_for("tpu"):
        return count_elements(variable_shapes(plan(config))["params"])


def plan_folder(workdir: str, variant: Variant, seed: int) -> str:
    """Returns the work directory of a run, below the work directory of the sweep."""
    return os.path.join(workdir, variant.name, f"seed_{seed}")


def describe_plan(runs: Sequence[PlannedRun], finished: Collection[str]) -> list[str]:
    """Returns the lines of a table, a header and a line for each variant.

    A line has the name, the finished seeds such as 1/3, the number of parameters or "-" if it is unknown, and
    the overrides such as model.heads=4.

    Args:
      runs: the runs of the sweep.
      finished: names of the finished runs.
    """
    lines = [f"{'variant':<18}{'finished':>9}{'parameters':>14}  differs in"]
    for variant in dict.fromkeys(run.variant.name for run in runs):
        several = [run for run in runs if run.variant.name == variant]
        count = sum(run.name in finished for run in several)
        parameters = count_parameters(several[0].config)
        shown = "-" if parameters is None else f"{parameters:,}"
        overrides = ", ".join(f"{path}={value}" for path, value in several[0].variant.overrides.items())
        lines.append(f"{variant:<18}{f'{count}/{len(several)}':>9}{shown:>14}  {overrides}".rstrip())
    return lines
