"""The dry run: parameters, batches, memory and last measured speed of a run, before it starts."""

import os
from collections.abc import Callable

import jax

from tfm.devices.memory import format_bytes, measure_memory
from tfm.training.config import TrainingConfig
from tfm.training.run_log import METRICS_FILE, read_metrics
from tfm.training.scores import check_score_names
from tfm.training.setup import Setup
from tfm.training.task import Data, Task, check_contract

COLUMN = 20  # characters of a name


def describe_run(
    task: Task, config: TrainingConfig, workdir: str, open_data: Callable[[], Data] | None = None
) -> list[str]:
    """Compiles the step for the largest batch and describes what a run takes.

    Args:
      task, config, workdir: see `tfm.workdir.train.train`.
      open_data: opens and checks the data of the run. None opens the data of the task.

    Returns:
      Lines that begin with a name of `COLUMN` characters: parameters, devices, the lines of `Data.describe`,
      memory of a device, and speed. Lines of advice follow as "warning: TEXT".

    Raises:
      UserError: if the step does not fit into the memory of a device, if the data cannot be used, or if
        `Setup` or `check_score_names` raises it.
    """
    setup = Setup(task, config)
    check_score_names(task, config)
    data = (open_data or task.open_data)()
    check_contract(data, Data)
    example = data.example()
    setup.check_padding(example)
    _, compiled = setup.compile_step(example)
    memory = measure_memory(compiled)
    device = f"{format_bytes(memory.state)} state, {format_bytes(memory.step)} for a step"
    if memory.available:
        device += f", of {format_bytes(memory.available)}"
    described = data.describe(setup.parameters)
    lines = [
        ("parameters", f"{setup.parameters:,}"),
        ("devices", f"{setup.partitioner.devices} {jax.devices()[0].device_kind}"),
        *(line for line in described if line[0] != "warning"),
        ("memory of a device", device),
        ("speed", _last_speed(workdir, task.unit)),
    ]
    warnings = [f"warning: {text}" for name, text in described if name == "warning"]
    return [f"{name:<{COLUMN}}{text}" for name, text in lines] + warnings


def _last_speed(workdir: str, unit: str) -> str:
    """Returns the newest measured speed in the log of a run, for the report."""
    name = f"train/{unit}_per_second"
    rates = []
    if os.path.isfile(os.path.join(workdir, METRICS_FILE)):
        rates = [row[name] for row in read_metrics(workdir) if name in row]
    return f"{rates[-1]:,.0f} {unit}/s when last measured here" if rates else "not measured here yet"
