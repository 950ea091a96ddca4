"""Learning-rate schedules: pure functions of the update count, as Optax takes them.

All warm up linearly: in step s of W warm-up steps the rate is s / W of its peak. Optax counts updates from 0
and the paper counts steps from 1, so that the count-th update has step s = count + 1.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

Schedule = Callable[[ArrayLike], jax.Array]


def inverse_sqrt(d_model: int, warmup_steps: int, scale: float = 1.0) -> Schedule:
    """Equation 3 of the paper: d_model^-0.5 * min(s^-0.5, s * W^-1.5), times `scale`.

    Its peak, in the last step of the warm-up, is scale * (d_model * W)^-0.5.

    >>> f"{inverse_sqrt(512, 4000)(3999):.3e}"
    '6.988e-04'

    Args:
      d_model: width of the model.
      warmup_steps: W, at least 1.
      scale: factor.

    Raises:
      ValueError: `warmup_steps` is below 1.
    """
    _check_warmup(warmup_steps, math.inf)

    def schedule(count):
        step = _step(count)
        return scale * d_model**-0.5 * jnp.minimum(step**-0.5, step * warmup_steps**-1.5)

    return schedule


def linear_decay(peak: float, warmup_steps: int, total_steps: int) -> Schedule:
    """peak * min(s / W, (T + 1 - s) / (T + 1 - W)): falls linearly, to 0 after the last of T steps.

    Not the paper's. For short runs, where equation 3 would end at a rate that is still high.

    Examples:
      >>> [round(float(linear_decay(1.0, 2, 5)(count)), 2) for count in range(6)]
      [0.5, 1.0, 0.75, 0.5, 0.25, 0.0]

    Args:
      peak: rate of step W.
      warmup_steps: W, at least 1 and below T.
      total_steps: T.

    Raises:
      ValueError: `warmup_steps` is out of range.
    """
    _check_warmup(warmup_steps, total_steps)

    def schedule(count):
        step = _step(count)
        falling = (total_steps + 1 - step) / (total_steps + 1 - warmup_steps)
        return peak * jnp.clip(jnp.minimum(step / warmup_steps, falling), 0.0)

    return schedule


def cosine_decay(peak: float, warmup_steps: int, total_steps: int) -> Schedule:
    """peak * min(s / W, (1 + cos(pi * p)) / 2), where p = (s - W) / (T + 1 - W) goes from 0 to 1.

    Loshchilov and Hutter 2017, without restarts: falls to 0 after the last of T steps.

    Examples:
      >>> [round(float(cosine_decay(1.0, 2, 5)(count)), 2) for count in range(6)]
      [0.5, 1.0, 0.85, 0.5, 0.15, 0.0]

    Args:
      peak: rate of step W.
      warmup_steps: W, at least 1 and below T.
      total_steps: T.

    Raises:
      ValueError: `warmup_steps` is out of range.
    """
    _check_warmup(warmup_steps, total_steps)

    def schedule(count):
        step = _step(count)
        progress = jnp.clip((step - warmup_steps) / (total_steps + 1 - warmup_steps), 0.0, 1.0)
        return peak * jnp.minimum(step / warmup_steps, (1 + jnp.cos(jnp.pi * progress)) / 2)

    return schedule


def constant(peak: float, warmup_steps: int) -> Schedule:
    """peak * min(s / W, 1).

    Examples:
      >>> [round(float(constant(1.0, 2)(count)), 2) for count in range(4)]
      [0.5, 1.0, 1.0, 1.0]

    Args:
      peak: rate from step W on.
      warmup_steps: W, at least 1; 1 for no warm-up.

    Raises:
      ValueError: `warmup_steps` is below 1.
    """
    _check_warmup(warmup_steps, math.inf)

    def schedule(count):
        return peak * jnp.minimum(_step(count) / warmup_steps, 1.0)

    return schedule


def _step(count):
    """Steps count from 1."""
    return jnp.asarray(count, jnp.float32) + 1


def _check_warmup(warmup_steps, total_steps):
    if 1 <= warmup_steps < total_steps:
        return
    below = "" if total_steps == math.inf else f" and below {total_steps}"
    raise ValueError(f"warmup_steps must be at least 1{below}, got {warmup_steps}")
