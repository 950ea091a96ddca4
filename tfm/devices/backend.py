"""Decisions that depend on the device that will run a program, made when the program is traced."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.extend.backend

NUMERICAL_OPTIONS = (  # options of JAX on which the numbers of a run depend
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_enable_x64",
    "jax_threefry_partitionable",
)

_compiling_for: list[str] = []


def is_cpu() -> bool:
    """Returns whether the program that is being traced will run on a CPU.

    Equal implementations of one function are chosen by this when a program is traced, not when it runs.
    `tfm.search.top_k` and `tfm.devices.matmul` have an implementation for CPUs. They use JAX's own functions
    elsewhere, also in a program that an accelerator exports.
    """
    return (_compiling_for or [jax.default_backend()])[-1] == "cpu"


def cuda_capability() -> float:
    """Returns the compute capability of the first CUDA device of this process, such as 9.0.

    Returns 0 for other devices, and for programs that `compile_for` traces for a device that may be absent.
    """
    if _compiling_for or "cuda" not in jax.extend.backend.get_backend().platform_version:
        return 0.0
    return float(jax.local_devices()[0].compute_capability)


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


def keep_contexts(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that another thread may call with the JAX contexts of this thread.

    A context such as `jax.debug_nans` has the name of its option and sets it only in its own thread.
    """
    values = {name: getattr(jax.config, name) for name in (*NUMERICAL_OPTIONS, "jax_debug_nans")}

    def call(*arguments: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for name, value in values.items():
                stack.enter_context(getattr(jax, name.removeprefix("jax_"))(value))
            return function(*arguments)

    return call
