"""Programs that several tests run."""

from typing import Any

import jax

from tfm.testing.models import quick_jit


def initialize(task: Any) -> Any:
    """Returns the initial parameters of a task."""
    return quick_jit(task.init)(jax.random.key(0))


def count_foreign_calls(function: Any, *operands: Any) -> int:
    """Returns the number of operations of a function that call oneDNN."""
    return str(jax.make_jaxpr(function)(*operands)).count("tfm_onednn_multiply")
