"""The dry run for TPUs that are not here: the step is compiled for them, and its text says what it takes.

The compiler is that of the package libtpu; no TPU is needed. What is estimated, step time and all that
follows from it, is the least that the published figures of the chip allow; it is not a measurement.
"""

import contextlib
import importlib.util
import itertools
import math
import os
from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax.experimental import topologies

from tfm import backend
from tfm.errors import UserError, install_extra
from tfm.memory import explain_out_of_memory, format_bytes, measure_memory
from tfm.training import compiled_text
from tfm.training.chips import CHIPS, Chip, Roofline, estimate
from tfm.training.config import TrainingConfig
from tfm.training.setup import Setup
from tfm.training.task import Batch, Task

COLUMN = 20  # characters of a name
BATCHES = 10  # of the run, among which is the fullest
SECONDS_OF_AN_HOUR = 3600
LIBTPU_SETTINGS = {
    "TPU_SKIP_MDS_QUERY": "1",  # it asks the network for a TPU
    "TPU_STDERR_LOG_LEVEL": "3",  # and complains that there is none
    "TPU_MIN_LOG_LEVEL": "3",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # several processes may compile at a time
}
# Both cores of a chip as one device, as on Cloud TPUs; libtpu does so by itself for all generations but this.
CHIP_SETTINGS = {"v4": {"chip_config_name": "megacore"}}


class CompiledStep(NamedTuple):
    """What a step takes on each device.

    Attributes:
      parameters, optimizer: bytes of a device's part of the parameters, and of the rest of the state.
      batch: bytes of its part of a batch.
      activations: bytes beside these while a step runs: activations, gradients, what is gathered.
      flops: of its matrix products.
      memory_bytes: that it reads from and writes to its memory.
      collectives: see `compiled_text`.
      host_transfers: exchanges with the host while the step runs.
      roofline: the least time it takes; None on devices that `CHIPS` does not have.
    """

    parameters: int
    optimizer: int
    batch: int
    activations: int
    flops: int
    memory_bytes: int
    collectives: list[compiled_text.Collective]
    host_transfers: int
    roofline: Roofline | None

    @property
    def peak(self) -> int:
        """Bytes that a device needs."""
        return self.parameters + self.optimizer + self.batch + self.activations


def find_devices(topology: str) -> tuple[Sequence[jax.Device], Chip]:
    """The devices of a topology such as "v5e:4x4", one for each chip, and the figures of a chip.

    Raises:
      UserError: libtpu is not installed, or has no such topology.
    """
    generation = topology.partition(":")[0]
    if generation not in CHIPS or ":" not in topology:
        raise UserError(
            f"--topology must be GENERATION:SHAPE, such as v5e:4x4 or v4:2x2x1, of {', '.join(CHIPS)}, "
            f"got {topology!r}."
        )
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(f"--topology needs the compiler for TPUs: {install_extra('tpu')}.")
    for name, value in LIBTPU_SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        settings = CHIP_SETTINGS.get(generation, {})
        found = topologies.get_topology_desc(platform="tpu", topology_name=topology, **settings)
    except (jax.errors.JaxRuntimeError, RuntimeError, ValueError) as error:
        first_line = str(error).split("\n")[0]
        raise UserError(f"--topology: libtpu does not know {topology!r} ({first_line}).") from None
    return found.devices, CHIPS[generation]


def compile_for(
    task: Task,
    config: TrainingConfig,
    batch: Batch,
    devices: Sequence[jax.Device],
    chip: Chip | None = None,
) -> CompiledStep:
    """Compiles the training step for devices that need not be here.

    Args:
      task, config: of the run.
      batch: of all devices; only its shapes count.
      devices: of `find_devices`, or such as `jax.devices` returns.
      chip: of the devices.

    Raises:
      UserError: the step does not fit into a device.
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
    """What a run takes on a topology, a line each: see `find_devices` for its name and what is raised."""
    devices, chip = find_devices(topology)
    data = task.open_data()
    found = compile_for(task, config, data.example(), devices, chip)
    batches = list(itertools.islice(data.train_batches(0), BATCHES))
    units = max(data.count(batch) for batch in batches)
    shapes = jax.tree.leaves(jax.eval_shape(task.init, jax.random.key(0)))
    parameters = sum(math.prod(x.shape) for x in shapes)
    lines = [
        ("topology", f"{topology}, {len(devices)} chips"),
        ("parameters", f"{parameters:,}, {format_bytes(found.parameters)} a device"),
        *_describe_device(found, chip),
        *_describe_time(found.roofline, units, task.unit, config.steps, len(devices)),
    ]
    return [f"{name:<{COLUMN}}{text}" for name, text in lines]


@contextlib.contextmanager
def _keep_out_of_cache():
    """A program for devices that are not here would be written to the compilation cache, but not read."""
    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, math.inf)
    try:
        yield
    finally:
        jax.config.update(name, before)


def _measure(setup, state, batch, compiled, chip):
    memory = measure_memory(compiled)
    program = compiled_text.parse(compiled.as_text() or "")
    collectives = compiled_text.find_collectives(program)
    flops, memory_bytes = compiled_text.count_flops(program), compiled_text.count_memory_bytes(program)
    sent = {
        overlaps: sum(each.sent_bytes for each in collectives if each.overlaps == overlaps)
        for overlaps in (False, True)
    }
    parameters = _bytes_of_device(state.params)
    return CompiledStep(
        parameters,
        _bytes_of_device(state) - parameters,
        _bytes_of_device(batch),
        memory.step,
        flops,
        memory_bytes,
        collectives,
        len(compiled_text.find_host_transfers(program)),
        chip and estimate(chip, flops, memory_bytes, sent[False], sent[True]),
    )


def _bytes_of_device(tree):
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _describe_device(found, chip):
    yield "optimizer state", format_bytes(found.optimizer)
    yield "activations", f"{format_bytes(found.activations)}, gradients and gathered parameters with them"
    fits = "" if found.peak <= chip.memory else ": too much"
    yield "peak memory", f"{format_bytes(found.peak)} of {format_bytes(chip.memory)}{fits}"
    for kind in compiled_text.COLLECTIVES:
        if several := [each for each in found.collectives if each.kind == kind]:
            count = sum(each.times for each in several)
            beside = sum(each.times for each in several if each.overlaps)
            size = format_bytes(sum(each.total_bytes for each in several))
            dtypes = ", ".join(sorted({dtype for each in several for dtype in each.dtypes}))
            yield kind, f"{count:,} a step, {size} of {dtypes}; {beside:,} beside computation"
    yield "arithmetic", f"{found.flops / 1e9:,.1f} GFLOP a step and device"
    yield "memory traffic", f"{format_bytes(found.memory_bytes)} a step and device"


def _describe_time(roofline, units, unit, steps, chips):
    seconds = roofline.seconds
    parts = {
        "compute": roofline.compute,
        "HBM": roofline.memory,
        "interconnect": roofline.exposed + roofline.overlapped,
    }
    shares = ", ".join(f"{name} {1000 * part:.2f}" for name, part in parts.items())
    yield "step", f"at least {1000 * seconds:.2f} ms, bound by {roofline.bound} (ms: {shares})"
    yield "speed", f"at most {units / seconds:,.0f} {unit}/s, {units / seconds / chips:,.0f} a chip"
    yield "utilisation", f"at most {100 * roofline.utilisation:.0f} % of the chip's peak"
    hours = steps * seconds / SECONDS_OF_AN_HOUR
    yield "run", f"{steps:,} steps, at least {hours:,.2f} hours, {hours * chips:,.1f} chip-hours"
    yield "", "Compiled and estimated, not measured."
