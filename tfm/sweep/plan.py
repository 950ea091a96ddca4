"""The runs of a sweep before they start: config, parameters and arithmetic of each."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tfm import tasks
from tfm.memory_estimate import estimate_of
from tfm.sweep.variants import Variant

FLOPS_OF_A_PARAMETER = 6  # for each token: a multiply-add forward, and two backward
SECONDS_OF_AN_HOUR = 3600


class PlannedRun(NamedTuple):
    """A run of a sweep.

    Attributes:
      variant: what it is a run of.
      seed: of initialization, dropout and the order of the data.
      config: the frozen dataclass of its task.
      workdir: its folder.
      arguments: of `tfm train` and before the rest of `tfm evaluate`, without the work directory.
    """

    variant: Variant
    seed: int
    config: Any
    workdir: str
    arguments: Sequence[str]

    @property
    def name(self) -> str:
        """Of the variant, and the seed."""
        return f"{self.variant.name} seed {self.seed}"

    def count_parameters(self) -> int | None:
        """The number of parameters, with a vocabulary of the size that the config asks for.

        None where the task has no `plan_model`, or its model no estimate.
        """
        plan_model = getattr(tasks.find(self.config.task), "plan_model", None)
        estimate = plan_model and estimate_of(plan_model(self.config))
        return estimate.count_parameters() if estimate else None

    def count_flops(self) -> int | None:
        """Multiply-adds x 2 of its training, to a few per cent: 6 x parameters x tokens (of each side).

        Each parameter of an encoder-decoder multiplies the tokens of one side. Products of queries and keys,
        which depend on the lengths, and what rematerialization repeats are left out. None where
        `count_parameters` is None, or batches are not counted in tokens.
        """
        parameters, tokens = self.count_parameters(), getattr(self.config.data, "batch_tokens", None)
        if parameters is None or tokens is None:
            return None
        return FLOPS_OF_A_PARAMETER * parameters * tokens * self.config.training.steps


def plan_folder(workdir: str, variant: Variant, seed: int) -> str:
    """The work directory of a run in that of the sweep."""
    return os.path.join(workdir, variant.name, f"seed_{seed}")


def estimate_hours(run: PlannedRun, rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Hours of training, at the FLOP/s of the run of the ledger that was finished last; None without one."""
    flops = run.count_flops()
    rates = [row["flops_per_second"] for row in rows if row.get("flops_per_second")]
    if flops is None or not rates:
        return None
    return flops / rates[-1] / SECONDS_OF_AN_HOUR


def describe_plan(runs: Sequence[PlannedRun], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each variant and one for all: seeds, parameters, arithmetic, hours, what differs.

    Args:
      runs: of the sweep.
      rows: of its ledger, for the measured speed.
    """
    finished = {(row["variant"], row["seed"]) for row in rows}
    lines = [f"{'variant':<18}{'finished':>9}{'parameters':>14}{'FLOP':>12}{'hours':>9}  differs in"]
    hours_left = []
    for variant in dict.fromkeys(run.variant.name for run in runs):
        several = [run for run in runs if run.variant.name == variant]
        first, left = several[0], [run for run in several if (variant, run.seed) not in finished]
        hours = estimate_hours(first, rows)
        hours_left += [] if hours is None else [hours * len(left)]
        parameters, flops = first.count_parameters(), first.count_flops()
        columns = (
            f"{variant:<18}",
            f"{f'{len(several) - len(left)}/{len(several)}':>9}",
            f"{'-' if parameters is None else f'{parameters:,}':>14}",
            f"{'-' if flops is None else f'{flops:.2e}':>12}",
            f"{'-' if hours is None else f'{hours:,.2f}':>9}",
            "  " + ", ".join(f"{path}={value}" for path, value in first.variant.overrides.items()),
        )
        lines.append("".join(columns).rstrip())
    total = sum(hours_left)
    speed = f"{total:,.2f} hours of training left, one run after the other, at the speed of the last one"
    lines.append(speed if hours_left else "hours: no run of this sweep has been measured here yet")
    return lines
