"""The one place that decides between equal implementations of which one suits a CPU better."""

import contextlib
from collections.abc import Iterator

import jax

_compiling_for: list[str] = []
_foreign_calls = jax.make_user_context(True)  # JAX traces again where it has changed


def is_cpu() -> bool:
    """Whether programs run on a CPU by default; asked when a program is traced, not when it runs.

    `tfm.dropout`, `tfm.search.top_k`, `tfm.matmul` and `tfm.layers.quantization` ask, and each has an
    implementation for CPUs. Elsewhere they use JAX's own, and so does a program exported from an accelerator.
    """
    return (_compiling_for or [jax.default_backend()])[-1] == "cpu"


@contextlib.contextmanager
def compile_for(platform: str) -> Iterator[None]:
    """Inside, programs are traced for this platform ("tpu", "cuda"), whichever one the process runs on.

    JAX keeps what it traced of a jitted function, and does not know of this: trace functions made inside, and
    none that was traced before or that is called after.
    """
    _compiling_for.append(platform)
    try:
        yield
    finally:
        _compiling_for.pop()


def allows_foreign_calls() -> bool:
    """Whether products of bfloat16 may call a library beside XLA: on one CPU, as XLA divides no such call."""
    return _foreign_calls.value and is_cpu() and jax.device_count() == 1


@contextlib.contextmanager
def no_foreign_calls() -> Iterator[None]:
    """Inside, products of bfloat16 are traced without such calls, so that they can be exported."""
    with _foreign_calls(False):
        yield
