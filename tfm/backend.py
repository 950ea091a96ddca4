"""Decisions that depend on the device that will run a program, made when the program is traced."""

import contextlib
from collections.abc import Iterator

import jax

_compiling_for: list[str] = []
_foreign_calls = jax.make_user_context(True)  # a change makes JAX trace jitted functions again


def is_cpu() -> bool:
    """Returns whether the program that is being traced will run on a CPU.

    Equal implementations of one function are chosen by this when a program is traced, not when it runs.
    `tfm.search.top_k`, `tfm.matmul` and `tfm.layers.quantization` have an implementation for CPUs. They use
    JAX's own functions elsewhere, also in a program that an accelerator exports.
    """
    return (_compiling_for or [jax.default_backend()])[-1] == "cpu"


@contextlib.contextmanager
def compile_for(platform: str) -> Iterator[None]:
    """Traces programs for a platform ("tpu", "cuda"), whichever one the process runs on.

    JAX reuses the trace of a function even if the platform has changed in between. Therefore create the
    functions inside the context, and do not call them after it.
    """
    _compiling_for.append(platform)
    try:
        yield
    finally:
        _compiling_for.pop()


def allows_foreign_calls() -> bool:
    """Returns whether products of bfloat16 may call oneDNN.

    XLA does not divide these calls, so they are restricted to a single CPU device.
    """
    return _foreign_calls.value and is_cpu() and jax.device_count() == 1


@contextlib.contextmanager
def no_foreign_calls() -> Iterator[None]:
    """Traces products of bfloat16 without oneDNN, so that other machines can run the program."""
    with _foreign_calls(False):
        yield
