"""What a run will take, before it starts: parameters, memory, arithmetic, batches."""

import math
import os
from typing import Any, NamedTuple

import jax

from tfm.runtime.memory import gib
from tfm.training.reporting import METRICS_FILE, read_metrics
from tfm.training.setup import assemble, compile_step

PAPER_TOKENS = 25_000  # of a batch, on each side: section 5.1
RATE = "train/tokens_per_second"
FAR = 2.0  # this many times more or less than the paper's


class Plan(NamedTuple):
    """What a task knows of its batches.

    Attributes:
      largest: a host batch of the largest shape, a dict of [rows, length] arrays.
      shapes: (rows, length) of all.
      padding_share: of their places.
    """

    largest: dict[str, Any]
    shapes: list[tuple[int, int]]
    padding_share: float


def preflight(task, config, workdir):
    """Compiles the step for the largest batch and tells what a run takes.

    Args:
      task, config, workdir: as of `tfm.training.loop.train`.

    Returns:
      The lines of the report.

    Raises:
      UserError: the step does not fit into the memory of a device, or the data cannot be used.
    """
    parts = assemble(task, config)
    task.prepare()
    plan = task.plan()
    _, _, memory = compile_step(parts, parts.state, plan.largest, config.micro_batches)
    parameters = sum(x.size for x in jax.tree.leaves(parts.state.params))
    rows, length = max(plan.shapes, key=math.prod)
    tokens = rows * length * jax.process_count() * (1 - plan.padding_share)
    lines = [
        f"parameters          {parameters:,}",
        f"devices             {parts.layout.devices} {jax.devices()[0].device_kind}",
        f"batches             {len(plan.shapes)} shape(s), the largest {rows} x {length}; "
        f"padding {100 * plan.padding_share:.1f} %",
        f"tokens of a batch   about {tokens:,.0f} on each side",
        f"arithmetic          about {6e-9 * parameters * tokens:,.0f} GFLOP a step (6 x parameters x tokens)",
        f"memory of a device  {gib(memory.state)} state, {gib(memory.step)} for a step"
        + (f", of {gib(memory.available)}" if memory.available else ""),
        f"speed               {_speed(workdir)}",
    ]
    return lines + _advice(tokens, config.micro_batches)


def _speed(workdir):
    rates = []
    if os.path.isfile(os.path.join(workdir, METRICS_FILE)):
        rates = [row[RATE] for row in read_metrics(workdir) if RATE in row]
    return f"{rates[-1]:,.0f} tokens/s when last measured here" if rates else "not measured here yet"


def _advice(tokens, micro_batches):
    """A warning where the effective batch is far from the paper's."""
    if PAPER_TOKENS / FAR <= tokens <= PAPER_TOKENS * FAR:
        return []
    parts = max(round(micro_batches * PAPER_TOKENS / tokens), 1)
    return [
        f"warning: the paper's batches have about {PAPER_TOKENS:,} tokens on each side; in about this memory "
        f"--config.data.batch_tokens={PAPER_TOKENS} --config.training.micro_batches={parts} makes them."
    ]
