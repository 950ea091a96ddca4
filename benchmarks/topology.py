"""The dry run for TPUs: compiles the training step for a topology, and reports its memory, traffic and time.

The package libtpu contains the compiler. No TPU is needed. The step time, and all numbers computed from it,
are minimum values from the published figures of the chip. They are not measurements.
"""

import contextlib
import importlib.util
import itertools
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
from absl import app, flags
from jax.experimental import topologies

from benchmarks import hlo
from benchmarks.chips import CHIPS, Chip, Roofline, estimate
from tfm import tasks
from tfm.commands.config_files import read_config_file
from tfm.devices import backend
from tfm.devices.memory import (
    count_device_bytes,
    count_elements,
    explain_out_of_memory,
    format_bytes,
    measure_memory,
)
from tfm.errors import UserError, first_line, install_extra
from tfm.training.config import TrainingConfig
from tfm.training.setup import Setup
from tfm.training.task import Batch, Task, variable_shapes

COLUMN = 20  # characters of the column of names
BATCHES = 10  # first batches of the run; the fullest counts for the speed
SECONDS_OF_AN_HOUR = 3600
LIBTPU_SETTINGS = {
    "TPU_SKIP_MDS_QUERY": "1",  # otherwise libtpu searches the network for a TPU
    "TPU_STDERR_LOG_LEVEL": "3",  # otherwise libtpu prints that no TPU exists
    "TPU_MIN_LOG_LEVEL": "3",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # allows several processes to compile at the same time
}
# Makes both cores of a chip one device, as on Cloud TPUs. For other generations, this is libtpu's default.
CHIP_SETTINGS = {"v4": {"chip_config_name": "megacore"}}


class CompiledStep(NamedTuple):
    """The memory, traffic and time of a compiled step on each device.

    Attributes:
      parameters: bytes of the device's part of the parameters.
      optimizer: bytes of the device's part of the rest of the state.
      batch: bytes of the device's part of a batch.
      activations: bytes of temporary arrays: activations, gradients and gathered parameters.
      flops: operations of the device's matrix products. A multiply-add counts as two.
      memory_bytes: bytes that the device reads from and writes to its memory.
      collectives: see `hlo.find_collectives`.
      host_transfers: number of exchanges with the host during the step.
      roofline: minimum time of the step, or None for devices that are not in `CHIPS`.
    """

    parameters: int
    optimizer: int
    batch: int
    activations: int
    flops: int
    memory_bytes: int
    collectives: list[hlo.Collective]
    host_transfers: int
    roofline: Roofline | None

    @property
    def peak(self) -> int:
        """Total bytes that a device needs."""
        return self.parameters + self.optimizer + self.batch + self.activations


def find_devices(topology: str) -> tuple[Sequence[jax.Device], Chip]:
    """Returns the devices of a topology such as "v5e:4x4", one for each chip, and the figures of a chip.

    Raises:
      UserError: if libtpu is not installed or does not support the topology.
    """
    generation = topology.partition(":")[0]
    if generation not in CHIPS or ":" not in topology:
        raise UserError(
            "Expected --topology to be GENERATION:SHAPE, such as v5e:4x4 or v4:2x2x1, with a generation out "
            f"of {', '.join(CHIPS)}, got {topology!r}."
        )
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(f"--topology needs the compiler for TPUs: {install_extra('tpu')}.")
    for name, value in LIBTPU_SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        settings = CHIP_SETTINGS.get(generation, {})
        description = topologies.get_topology_desc(platform="tpu", topology_name=topology, **settings)
    except (jax.errors.JaxRuntimeError, RuntimeError, ValueError) as error:
        raise UserError(f"libtpu does not support --topology={topology!r} ({first_line(error)}).") from None
    return description.devices, CHIPS[generation]


def compile_for(
    task: Task,
    config: TrainingConfig,
    batch: Batch,
    devices: Sequence[jax.Device],
    chip: Chip | None = None,
) -> CompiledStep:
    """Compiles the training step for devices. They can be devices that this machine does not have.

    Args:
      task, config: task and training config of the run.
      batch: the batch of all devices. Only its shapes and dtypes count.
      devices: the devices, from `find_devices` or `jax.devices`.
      chip: figures of the chip of a device. None gives no `roofline`.

    Raises:
      UserError: if the step does not fit into a device.
    """
    with backend.compile_for(devices[0].platform), _keep_out_of_cache():
        setup = Setup(task, config, devices)
        constants = setup.constant_shapes
        step = setup.partitioner.compile(setup.step, setup.state, constants)
        state, placed, constants = setup.partitioner.shapes(setup.state, batch, constants)
        with explain_out_of_memory(config.gradient_accumulation_steps):
            compiled = step.lower(state, placed, constants).compile()
    return _measure(setup, state, placed, compiled, chip)


def describe_topology(task: Task, config: TrainingConfig, topology: str) -> list[str]:
    """Returns lines about memory, traffic and time of a run on a topology.

    Args:
      task, config: task and training config of the run.
      topology: name of the topology, see `find_devices`.

    Raises:
      UserError: see `find_devices` and `compile_for`.
    """
    devices, chip = find_devices(topology)
    data = task.open_data()
    compiled = compile_for(task, config, data.example(), devices, chip)
    batches = list(itertools.islice(data.train_batches(0), BATCHES))
    units = max(data.count(batch) for batch in batches)
    assert compiled.roofline is not None, "compile_for was given a chip"
    parameters = count_elements(variable_shapes(task))
    lines = [
        ("topology", f"{topology}, {len(devices)} chips"),
        ("parameters", f"{parameters:,}, {format_bytes(compiled.parameters)} per device"),
        *describe_device(compiled, chip),
        *describe_time(compiled.roofline, units, task.unit, config.steps, len(devices)),
    ]
    return [f"{name:<{COLUMN}}{text}" for name, text in lines]


@contextlib.contextmanager
def _keep_out_of_cache():
    """Turns the compilation cache off, because JAX never reads programs for absent devices from it."""
    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, math.inf)
    try:
        yield
    finally:
        jax.config.update(name, before)


def _measure(
    setup: Setup, state: Any, batch: Any, compiled: jax.stages.Compiled, chip: Chip | None
) -> CompiledStep:
    """Reads the numbers of a `CompiledStep` from the text and the memory analysis of a compiled step."""
    memory = measure_memory(compiled)
    program = hlo.parse(compiled.as_text() or "")
    collectives = hlo.find_collectives(program)
    flops, memory_bytes = hlo.count_flops(program), hlo.count_memory_bytes(program)
    exposed, overlapped = (
        sum(x.sent_bytes for x in collectives if x.overlaps == overlaps) for overlaps in (False, True)
    )
    parameters = count_device_bytes(jax.tree.leaves(state.params))
    return CompiledStep(
        parameters,
        count_device_bytes(jax.tree.leaves(state)) - parameters,
        count_device_bytes(jax.tree.leaves(batch)),
        memory.step,
        flops,
        memory_bytes,
        collectives,
        len(hlo.find_host_transfers(program)),
        chip and estimate(chip, flops, memory_bytes, exposed, overlapped),
    )


def describe_device(compiled: CompiledStep, chip: Chip) -> Iterator[tuple[str, str]]:
    """Yields (name, text) of the lines about memory and traffic."""
    yield "optimizer state", format_bytes(compiled.optimizer)
    yield "activations", f"{format_bytes(compiled.activations)}, with gradients and gathered parameters"
    fits = "" if compiled.peak <= chip.memory else ": too much"
    yield "peak memory", f"{format_bytes(compiled.peak)} of {format_bytes(chip.memory)}{fits}"
    for kind in hlo.COLLECTIVES:
        if collectives := [x for x in compiled.collectives if x.kind == kind]:
            count = sum(x.times for x in collectives)
            overlapping = sum(x.times for x in collectives if x.overlaps)
            size = format_bytes(sum(x.total_bytes for x in collectives))
            dtypes = ", ".join(sorted({dtype for x in collectives for dtype in x.dtypes}))
            yield kind, f"{count:,} per step, {size} of {dtypes}; {overlapping:,} overlap with computation"
    yield "arithmetic", f"{compiled.flops / 1e9:,.1f} GFLOP per step and device"
    yield "memory traffic", f"{format_bytes(compiled.memory_bytes)} per step and device"


def describe_time(
    roofline: Roofline, units: int, unit: str, steps: int, chips: int
) -> Iterator[tuple[str, str]]:
    """Yields (name, text) of the lines about time, speed and chip-hours. A batch has `units` of `unit`."""
    seconds = roofline.seconds
    shares = ", ".join(f"{name} {1000 * part:.2f}" for name, part in roofline.parts.items())
    yield "step", f"at least {1000 * seconds:.2f} ms, bound by {roofline.bound} (ms: {shares})"
    yield "speed", f"at most {units / seconds:,.0f} {unit}/s, {units / seconds / chips:,.0f} per chip"
    yield "utilisation", f"at most {100 * roofline.utilisation:.0f} % of the chip's peak"
    hours = steps * seconds / SECONDS_OF_AN_HOUR
    yield "run", f"{steps:,} steps, at least {hours:,.2f} hours, {hours * chips:,.1f} chip-hours"
    yield "", "Compiled and estimated, not measured."


def main(_: Sequence[str]) -> None:
    """Prints the report of a config: python -m benchmarks.topology --config=CONFIG --topology=v5e:4x4"""
    config, _ = read_config_file(FLAGS.config)
    find_devices(FLAGS.topology)  # raises an error for an unknown topology before the data are read
    with tempfile.TemporaryDirectory() as workdir:
        task = tasks.find(config.task).create(config, workdir)
        print("\n".join(describe_topology(task, config.training, FLAGS.topology)))


if __name__ == "__main__":
    FLAGS = flags.FLAGS
    flags.DEFINE_string("config", None, "Config of a run.", required=True)
    flags.DEFINE_string("topology", None, "TPUs, such as v5e:4x4.", required=True)
    app.run(main)
