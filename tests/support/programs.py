"""Programs that several tests run, compiled in a hurry: each operation alone would be compiled as one."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

FAST = {"xla_backend_optimization_level": 0}  # to compile


def initialize(task: Any) -> Any:
    """Parameters of a task."""
    return jax.jit(task.init, compiler_options=FAST)(jax.random.key(0))


def count_foreign_calls(function: Any, *operands: Any) -> int:
    """How many operations of a function call oneDNN."""
    return str(jax.make_jaxpr(function)(*operands)).count("tfm_onednn_multiply")


@functools.partial(jax.jit, static_argnames=("model", "max_length"), compiler_options=FAST)
def decode_steps(model, params, inputs, tokens, parents, max_length):
    """Logits [T, B, W, V] of T cached steps with tokens [T, B, W]; the next extend parents [T, B, W]."""

    def step(cache, now):
        position, tokens, parents = now
        logits, cache = model.apply({"params": params}, tokens, cache, position, method="decode_step")
        return cache.reorder(parents), logits

    options = {"width": tokens.shape[-1], "max_length": max_length, "method": "init_cache"}
    cache = model.apply({"params": params}, inputs, **options)
    return jax.lax.scan(step, cache, (jnp.arange(len(tokens)), tokens, parents))[1]
