"""The plan of a sweep: the config, number of parameters and arithmetic of each run before it starts."""

import functools
import os
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from tfm import tasks
from tfm.devices.backend import compile_for
from tfm.devices.memory import count_elements
from tfm.sweep.variants import Variant
from tfm.training.task import variable_shapes

FLOPS_OF_A_PARAMETER = 6  # for each token: one multiply-add forward and two backward
SECONDS_OF_AN_HOUR = 3600


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

    def count_flops(self) -> int | None:
        """Returns the floating-point operations of the whole training, accurate to a few per cent.

        The estimate is 6 x parameters x tokens of one side, because each parameter of an encoder-decoder
        multiplies the tokens of one side. It omits the products of queries and keys, because they depend on
        the lengths, and the repeated work of rematerialization. Returns None if `count_parameters` does, or
        if the batch size is not in tokens.
        """
        parameters, tokens = count_parameters(self.config), getattr(self.config.data, "batch_tokens", None)
        if parameters is None or tokens is None:
            return None
        return FLOPS_OF_A_PARAMETER * parameters * tokens * self.config.training.steps


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


def estimate_hours(run: PlannedRun, flops_per_second: float | None) -> float | None:
    """Estimates the hours of training at a speed. Returns None if the arithmetic or the speed is unknown."""
    flops = run.count_flops()
    if flops is None or not flops_per_second:
        return None
    return flops / flops_per_second / SECONDS_OF_AN_HOUR


def describe_plan(
    runs: Sequence[PlannedRun], finished: Collection[str], flops_per_second: float | None
) -> list[str]:
    """Returns the lines of a table with seeds, parameters, arithmetic, hours and overrides of each variant.

    The last line has the total hours of the runs that are not finished, or says why they are unknown.

    Args:
      runs: the runs of the sweep.
      finished: names of the finished runs.
      flops_per_second: the speed of a finished run, or None if no run has finished.
    """
    lines = [f"{'variant':<18}{'finished':>9}{'parameters':>14}{'FLOP':>12}{'hours':>9}  differs in"]
    hours_left = []
    for variant in dict.fromkeys(run.variant.name for run in runs):
        several = [run for run in runs if run.variant.name == variant]
        first, left = several[0], [run for run in several if run.name not in finished]
        hours = estimate_hours(first, flops_per_second)
        hours_left += [] if hours is None else [hours * len(left)]
        parameters, flops = count_parameters(first.config), first.count_flops()
        columns = (
            f"{variant:<18}",
            f"{f'{len(several) - len(left)}/{len(several)}':>9}",
            f"{'-' if parameters is None else f'{parameters:,}':>14}",
            f"{'-' if flops is None else f'{flops:.2e}':>12}",
            f"{'-' if hours is None else f'{hours:,.2f}':>9}",
            "  " + ", ".join(f"{path}={value}" for path, value in first.variant.overrides.items()),
        )
        lines.append("".join(columns).rstrip())
    if hours_left:
        total = f"{sum(hours_left):,.2f} hours of training left"
        lines.append(f"{total}, one run after the other, at the speed of the last one")
    elif flops_per_second is None and any(run.count_flops() for run in runs):
        lines.append("hours: no run of this sweep has been measured here yet")
    else:
        lines.append("hours: unknown, because the FLOP of these runs are unknown")
    return lines
