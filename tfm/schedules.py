"""Learning-rate schedules (section 5.3): pure functions of the update count, as Optax takes them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

Schedule = Callable[[ArrayLike], jax.Array]  # count of updates, from 0 -> learning rate, float32


def inverse_sqrt(d_model: int, warmup_steps: int, scale: float = 1.0) -> Schedule:
    """Equation 3: d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5), times `scale`.

    Optax counts updates from 0 and the paper counts steps from 1, so the count-th update has step count + 1.

    >>> f"{inverse_sqrt(512, 4000)(3999):.3e}"
    '6.988e-04'
    """
    if warmup_steps < 1:
        raise ValueError(f"warmup_steps must be at least 1, got {warmup_steps}")

    def schedule(count):
        step = jnp.asarray(count, jnp.float32) + 1
        return scale * d_model**-0.5 * jnp.minimum(step**-0.5, step * warmup_steps**-1.5)

    return schedule


def linear_decay(peak: float, warmup_steps: int, total_steps: int) -> Schedule:
    """Linear warm-up to `peak` in `warmup_steps`, then linear decay to 0 after `total_steps`.

    Not the paper's. For short runs, where equation 3 would end at a rate that is still high.
    """
    if not 1 <= warmup_steps < total_steps:
        raise ValueError(f"warmup_steps must be at least 1 and below {total_steps}, got {warmup_steps}")

    def schedule(count):
        step = jnp.asarray(count, jnp.float32) + 1
        falling = (total_steps + 1 - step) / (total_steps + 1 - warmup_steps)
        return peak * jnp.clip(jnp.minimum(step / warmup_steps, falling), 0.0)

    return schedule
