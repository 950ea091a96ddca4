"""Memory: whether a step fits into that of its devices, and what keeps that of the process flat."""

import contextlib
import ctypes
import os
from typing import NamedTuple

import jax

from tfm.errors import UserError

M_ARENA_MAX = -8  # of mallopt(3)
CGROUP_LIMIT = "/sys/fs/cgroup/memory.max"  # of a container or a batch job on Linux


class Memory(NamedTuple):
    """Bytes on one device: state and batch, what a step needs beside them, and what there is, or None."""

    state: int
    step: int
    available: int | None

    @property
    def needed(self):
        """Bytes in all."""
        return self.state + self.step


def one_arena_a_core():
    """Keeps the process from growing for hours; call it before threads begin.

    The threads of XLA, of checkpoints and of the input each allocate in a heap ("arena") of their own, and
    what they free stays in it. glibc makes up to eight arenas a core; what having one costs in speed is less
    than two cores could show (docs/reliability.md). Where the environment sets MALLOC_ARENA_MAX or
    glibc.malloc.arena_max, that holds; other C libraries have none.
    """
    if "MALLOC_ARENA_MAX" in os.environ or "arena_max" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, max(os.cpu_count(), 2))


def memory_of(compiled):
    """The `Memory` of a compiled step that donates its state."""
    analysis = compiled.memory_analysis()
    state = analysis.argument_size_in_bytes
    step = analysis.temp_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return Memory(state, step, _available())


@contextlib.contextmanager
def enough_memory(micro_batches):
    """A device that runs out of memory in here is a mistake of the user.

    Raises:
      UserError: instead of XLA's own error.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        first_line = str(error).split("\n")[0]
        raise UserError(
            f"A step does not fit into a device ({first_line}): {_advice(micro_batches)}"
        ) from None


def check_memory(memory, micro_batches):
    """
    Raises:
      UserError: a step needs more than there is.
    """
    if memory.available and memory.needed > memory.available:
        raise UserError(
            f"A step needs {gib(memory.needed)} on each device and there are {gib(memory.available)}: "
            f"{_advice(micro_batches)}"
        )


def gib(size):
    """Bytes -> '1.50 GiB'."""
    return f"{size / 2**30:.2f} GiB"


def _advice(micro_batches):
    return f"raise training.micro_batches (now {micro_batches}), set model.remat, or lower data.batch_tokens."


def _available():
    """Bytes of a device, or None where it does not say; CPU devices share the host's."""
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    if limit is not None or jax.default_backend() != "cpu":
        return limit
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError), open(CGROUP_LIMIT, encoding="ascii") as file:
        host = min(host, int(file.read()))  # the word "max" where there is no limit
    return host // jax.local_device_count()
