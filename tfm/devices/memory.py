"""Checks whether a model or a step fits into the memory, and keeps the memory of the process from growing."""

import contextlib
import ctypes
import dataclasses
import math
import os
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax

from tfm.config import walk_fields
from tfm.errors import UserError, first_line
from tfm.io.tree_paths import join_path

M_ARENA_MAX = -8  # of mallopt(3)
CGROUPS = "/sys/fs/cgroup"  # folder of the control groups of Linux, version 2
CGROUP_OF_PROCESS = "/proc/self/cgroup"  # file with the control group of this process
INT32 = 4
BATCH_ARRAYS = 6  # tokens, positions and segments of both sides
BATCHES_HELD = 9  # batches in memory: the current and the prefetched, see `tfm.data.batches.schedule`
# Host bytes for each layer during tracing and compilation. Tracing only the shapes of 100 layers needed
# 51 MiB (CPU, JAX 0.10.2).
LAYER_PROGRAM = 1 << 20


class Memory(NamedTuple):
    """The memory of one device in bytes.

    Attributes:
      state: bytes of the state and the batch.
      step: additional bytes of a step.
      available: bytes of the device, or None if they are unknown.
    """

    state: int
    step: int
    available: int | None

    @property
    def needed(self) -> int:
        """Total bytes that a step needs."""
        return self.state + self.step


def limit_malloc_arenas() -> None:
    """Limits malloc to one arena per core, so that a long run does not grow. Call it before threads start.

    Without a limit, glibc creates up to eight heaps ("arenas") per core for the threads of XLA, of
    checkpoints and of the input. Memory that a thread frees stays in its arena. The limit has no measurable
    cost in speed (benchmarks/notes/soak_test.md). MALLOC_ARENA_MAX and glibc.malloc.arena_max in the
    environment override the limit. The function does nothing if the C library is not glibc.
    """
    if "MALLOC_ARENA_MAX" in os.environ or "arena_max" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, max(os.cpu_count() or 1, 2))


def return_free_memory() -> None:
    """Returns freed memory from malloc to the system, for example after a compilation. Needs glibc."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def measure_memory(compiled: jax.stages.Compiled) -> Memory:
    """Returns the `Memory` of a compiled step that donates its state."""
    analysis: Any = compiled.memory_analysis()
    state = analysis.argument_size_in_bytes
    step = analysis.temp_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return Memory(state, step, available_memory())


@contextlib.contextmanager
def explain_out_of_memory(gradient_accumulation_steps: int) -> Iterator[None]:
    """Turns an out-of-memory error of a device inside the context into a UserError with advice.

    Raises:
      UserError: if a device does not have enough memory.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            f"A step does not fit into a device ({first_line(error)}): {_advice(gradient_accumulation_steps)}"
        ) from None


def check_memory(memory: Memory, gradient_accumulation_steps: int) -> None:
    """Checks that a device has enough memory for a step.

    Raises:
      UserError: if a step needs more than the available memory.
    """
    if memory.available and memory.needed > memory.available:
        raise UserError(
            f"A step needs {format_bytes(memory.needed)} on each device and there are "
            f"{format_bytes(memory.available)}: {_advice(gradient_accumulation_steps)}"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error is JAX's error for a device without enough memory."""
    return isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)


def check_estimate(what: str, needed: int | None, available: int | None, advice: str) -> None:
    """Compares an estimate with the available memory.

    Args:
      what: subject of the error message, such as "Training this model".
      needed: estimated bytes, or None if no estimate exists.
      available: available bytes, or None if they are unknown.
      advice: end of the error message: what the user can do.

    Raises:
      UserError: if `needed` is larger than `available`. Unknown numbers pass.
    """
    if needed is not None and available and needed > available:
        raise UserError(
            f"{what} needs about {format_bytes(needed)} and there are {format_bytes(available)}: {advice}."
        )


def check_batches_fit(tokens: int) -> None:
    """Checks the host memory of batches before data are read.

    Args:
      tokens: tokens of a batch on each side, including padding.

    Raises:
      UserError: if the batches do not fit into the memory of the host.
    """
    needed = BATCHES_HELD * BATCH_ARRAYS * INT32 * tokens
    check_estimate(f"Reading batches of {tokens:,} tokens", needed, host_memory(), "lower data.batch_tokens")


def check_depth(config: Any) -> None:
    """Checks the host memory that tracing and compiling the layers of a model need, before they are traced.

    Args:
      config: config of the run. Its fields with the unit "layers" are added.

    Raises:
      UserError: if the layers need too much memory.
    """
    if not dataclasses.is_dataclass(config):  # a task of a user may have any config
        return
    depths = {leaf.path: leaf.value for leaf in walk_fields(config) if leaf.info.unit == "layers"}
    count = " + ".join(f"{depth:,}" for depth in depths.values())
    needed = LAYER_PROGRAM * sum(depths.values())
    advice = f"lower {' and '.join(depths)}"
    check_estimate(f"Compiling a model of {count} layers", needed, host_memory(), advice)


def check_parameters_fit(
    params: Any, copies: int = 1, *, sharers: int = 1, available: int | None = None
) -> None:
    """Checks the memory of parameters before they are read.

    Args:
      params: tree of the parameters, or of their shapes.
      copies: number of copies of the parameters that are in memory at the same time.
      sharers: number of devices that divide the parameters.
      available: bytes that are available; None means the memory of a device.

    Raises:
      UserError: if the parameters need too much memory.
    """
    several = f" {copies} times" if copies > 1 else ""
    what = f"Loading {count_elements(params):,} parameters{several}"
    needed = count_bytes(params) * copies // sharers
    check_estimate(what, needed, available or available_memory(), advise_sizes(params))


def count_elements(tree: Any) -> int:
    """Returns the number of elements of all arrays, or shapes, of a tree."""
    return sum(x.size for x in jax.tree.leaves(tree))


def count_bytes(tree: Any) -> int:
    """Returns the bytes of all arrays, or shapes, of a tree."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def count_device_bytes(leaves: Iterable[Any]) -> int:
    """Returns the bytes that one device has of arrays, or of shapes with a sharding."""
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in leaves)


def advise_sizes(params: Any) -> str:
    """Returns the advice for parameters that need too much memory. It names the largest kind of parameter.

    Parameters whose paths differ only in numbers, such as the index of a layer, are of one kind.
    """
    kinds: dict[tuple[str, tuple[int, ...]], int] = {}
    for path, x in jax.tree_util.tree_leaves_with_path(params):
        name = re.sub(r"\d+", "*", join_path(path))
        kinds[name, x.shape] = kinds.get((name, x.shape), 0) + 1
    (name, shape), count = max(kinds.items(), key=lambda item: math.prod(item[0][1]) * item[1])
    arrays = f"{count:,} arrays" if count > 1 else "an array"
    size = " x ".join(f"{length:,}" for length in shape)
    return f"choose smaller sizes in the section model. The largest part is {name}, {arrays} of {size}"


def format_bytes(size: int) -> str:
    """Formats bytes as '1.50 GiB', or as '1.50 MiB' if they are few."""
    if size < 2**27:
        return f"{size / 2**20:,.2f} MiB"
    # Sizes of huge models can exceed the range of floats.
    return f"{size // 2**20 / 2**10:,.2f} GiB" if size < 2**80 else f"{size // 2**30:,} GiB"


def available_memory() -> int | None:
    """Returns the bytes of a device, or None if they are unknown. CPU devices share the host's memory."""
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    if limit is not None or jax.default_backend() != "cpu":
        return limit
    return host_memory() // jax.local_device_count()


def free_memory() -> int | None:
    """Returns the bytes of the first device that no array of JAX occupies, or None if they are unknown."""
    memory, device = available_memory(), jax.local_devices()[0]
    if memory is None:
        return None
    return memory - count_device_bytes(x for x in jax.live_arrays() if device in x.sharding.device_set)


def host_memory() -> int:
    """Returns the bytes that this process may use: the host's memory, or a smaller limit of a control group.

    Containers, SLURM and systemd limit the control group of a process or a group that contains it.
    """
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([host, *_control_group_limits()])


def _control_group_limits() -> Iterator[int]:
    """Yields the memory limits of the control group of this process and of all groups that contain it."""
    own = ""
    with contextlib.suppress(OSError), open(CGROUP_OF_PROCESS, encoding="utf-8", errors="replace") as file:
        own = next((line[3:].strip() for line in file if line.startswith("0::")), "")  # version 2
    group = pathlib.Path(CGROUPS, own.lstrip("/"))
    for folder in (group, *group.parents):
        # Without a limit, the file contains "max", a ValueError.
        with contextlib.suppress(OSError, ValueError):
            yield int((folder / "memory.max").read_text(encoding="ascii"))


def _advice(gradient_accumulation_steps: int) -> str:
    """Returns the advice for a step that needs too much memory. It is valid for the config of any task."""
    return (
        f"raise training.gradient_accumulation_steps (now {gradient_accumulation_steps}), lower the size of "
        "batches in the section data, or set model.remat if the model has this field."
    )
