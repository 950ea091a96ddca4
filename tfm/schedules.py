"""Learning-rate schedules: functions of the number of completed updates, as Optax expects.

All schedules increase linearly during the W steps of the warm-up: the rate of step s is s / W of the peak.
Optax counts updates from 0 and the paper counts steps from 1. Therefore update `count` is step s = count + 1.
All functions raise a ValueError if `warmup_steps` is below 1, or above `total_steps`.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

Schedule = Callable[[ArrayLike], jax.Array]


def inverse_sqrt(d_model: int, warmup_steps: int, scale: float = 1.0) -> Schedule:
    """Returns equation 3 of the paper: d_model^-0.5 * min(s^-0.5, s * W^-1.5), times `scale`.

    The peak, in the last step of the warm-up, is scale * (d_model * W)^-0.5.

    Examples:
      >>> f"{inverse_sqrt(512, 4000)(3999):.3e}"
      '6.988e-04'

    Args:
      d_model: model width.
      warmup_steps: W. A value below 1 raises a ValueError.
      scale: factor of the rate.
    """

    def rate(step):
        return scale * d_model**-0.5 * jnp.minimum(step**-0.5, step * warmup_steps**-1.5)

    return _make_schedule(rate, warmup_steps)


def linear_decay(peak: float, warmup_steps: int, total_steps: int) -> Schedule:
    """Returns peak * min(s / W, (T + 1 - s) / (T + 1 - W)), which falls to 0 after the last of T steps.

    This schedule is not in the paper. Equation 3 would end a short run at a high rate.

    Examples:
      >>> [round(float(linear_decay(1.0, 2, 5)(count)), 2) for count in range(6)]
      [0.5, 1.0, 0.75, 0.5, 0.25, 0.0]

    Args:
      peak: rate of step W.
      warmup_steps: W, from 1 to T. Another value raises a ValueError.
      total_steps: T.
    """

    def rate(step):
        falling = (total_steps + 1 - step) / (total_steps + 1 - warmup_steps)
        return peak * jnp.clip(jnp.minimum(step / warmup_steps, falling), 0.0)

    return _make_schedule(rate, warmup_steps, total_steps)


def cosine_decay(peak: float, warmup_steps: int, total_steps: int) -> Schedule:
    """Returns peak * min(s / W, (1 + cos(pi * p)) / 2), where p = (s - W) / (T + 1 - W) goes from 0 to 1.

    Loshchilov and Hutter 2017, without restarts: the rate falls to 0 after the last of T steps. For the
    arguments, see `linear_decay`.

    Examples:
      >>> [round(float(cosine_decay(1.0, 2, 5)(count)), 2) for count in range(6)]
      [0.5, 1.0, 0.85, 0.5, 0.15, 0.0]
    """

    def rate(step):
        progress = jnp.clip((step - warmup_steps) / (total_steps + 1 - warmup_steps), 0.0, 1.0)
        return peak * jnp.minimum(step / warmup_steps, (1 + jnp.cos(jnp.pi * progress)) / 2)

    return _make_schedule(rate, warmup_steps, total_steps)


def constant(peak: float, warmup_steps: int) -> Schedule:
    """Returns peak * min(s / W, 1). With a warm-up of one step, all steps have the rate `peak`.

    Examples:
      >>> [round(float(constant(1.0, 2)(count)), 2) for count in range(4)]
      [0.5, 1.0, 1.0, 1.0]

    Args:
      peak: rate from step W on.
      warmup_steps: W. A value below 1 raises a ValueError.
    """
    return _make_schedule(lambda step: peak * jnp.minimum(step / warmup_steps, 1.0), warmup_steps)


def _make_schedule(
    rate: Callable[[jax.Array], jax.Array], warmup_steps: int, total_steps: float = math.inf
) -> Schedule:
    """Returns a function of the update count from a function of the step, which counts from 1."""
    if not 1 <= warmup_steps <= total_steps:
        limit = "" if total_steps == math.inf else f" and at most total_steps ({total_steps})"
        raise ValueError(f"Expected warmup_steps to be at least 1{limit}, got {warmup_steps}.")
    return lambda count: rate(jnp.asarray(count, jnp.float32) + 1)
