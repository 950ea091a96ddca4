"""The probabilities of an ensemble, and the length penalty."""

import math

import jax
import jax.numpy as jnp

from tfm.losses import log_probability, log_z
from tfm.search.state import State, Step

MAX_FLOAT32_LOG = 88.0  # exp(88) is just below the largest float32.


def length_penalty(length: jax.Array | float, alpha: float) -> jax.Array | float:
    """Returns ((5 + length) / 6) ** alpha (Wu et al. 2016, equation 14; section 6.1 uses alpha 0.6)."""
    return ((5.0 + length) / 6.0) ** alpha


def ensemble(*steps: Step) -> Step:
    """Combines the steps of several models into one step that averages their probabilities.

    Args:
      steps: The step functions of the models, see `tfm.search`. All models must have the same vocabulary.

    Returns:
      A step function whose state is a tuple with the state of each model. It returns the logarithms of the
      mean probabilities as logits. For a single model, it returns the model's logits.
    """

    def step(
        tokens: jax.Array, states: tuple[State, ...], position: jax.Array
    ) -> tuple[jax.Array, tuple[State, ...]]:
        results = [
            member_step(tokens, state, position) for member_step, state in zip(steps, states, strict=True)
        ]
        states = tuple(state for _, state in results)
        if len(results) == 1:
            return results[0][0], states
        logs = [log_probability(logits, log_z(logits)[..., None]) for logits, _ in results]
        return jax.nn.logsumexp(jnp.stack(logs), axis=0) - jnp.log(len(results)), states

    return step


def check_penalty(alpha: float | jax.Array, max_length: int) -> None:
    """Checks that the length penalty of every output is within the range of float32.

    Args:
      alpha: Exponent of the length penalty. A traced `alpha` is not checked.
      max_length: Maximum number of tokens of an output.

    Raises:
      ValueError: If the penalty of an output with `max_length` tokens overflows or underflows.
    """
    if isinstance(alpha, int | float) and not abs(alpha * math.log((5 + max_length) / 6)) < MAX_FLOAT32_LOG:
        raise ValueError(
            "Expected ((5 + length) / 6) ** length_penalty to be within float32, got length_penalty "
            f"{alpha} for up to {max_length} tokens. Choose a length_penalty nearer to 0."
        )
