"""Functions that initialize tasks and count programs."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

from tfm.testing.models import quick_jit


def initialize(task: Any, seed: int = 0) -> Any:
    """Returns the initial parameters of a task."""
    return quick_jit(task.init)(jax.random.key(seed))["params"]


@contextlib.contextmanager
def count_programs() -> Iterator[list[str]]:
    """Yields a list. JAX appends an entry for each program that it compiles or reads from disk."""
    programs: list[str] = []
    _counters.append(programs)
    try:
        yield programs
    finally:
        _counters.remove(programs)


_counters: list[list[str]] = []


def _note(event: str, *_: Any, **__: Any) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        for programs in _counters:
            programs.append(event)


jax.monitoring.register_event_duration_secs_listener(_note)
