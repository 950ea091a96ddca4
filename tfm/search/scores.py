"""Log-probabilities of tokens, of one model or an ensemble, and the length penalty."""

import math

import jax
import jax.numpy as jnp

from tfm.search.state import State, Step

LARGEST_LOG = 88.0  # of a float32


def log_z(logits: jax.Array) -> jax.Array:
    """log sum exp over the vocabulary, the log of the partition function: [..., V] -> float32 [...]."""
    return jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1)


def log_probability(logit: jax.Array, log_z: jax.Array) -> jax.Array:
    """logit - log_z in float32; -inf where the logit is -inf, even if log_z is -inf too."""
    logit = logit.astype(jnp.float32)
    return jnp.where(logit == -jnp.inf, -jnp.inf, logit - log_z)


def length_penalty(length: jax.Array | float, alpha: float) -> jax.Array | float:
    """((5 + length) / 6) ** alpha: Wu et al. 2016, equation 14, as section 6.1 uses it with alpha 0.6."""
    return ((5.0 + length) / 6.0) ** alpha


def token_scores(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Log-probability of given tokens: logits [..., L, V], targets int [..., L] -> float32 [..., L]."""
    target_logit = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return log_probability(target_logit, log_z(logits))


def ensemble(*steps: Step) -> Step:
    """One step of several models: the mean of their probabilities.

    Args:
      steps: each a `step(tokens, state, position)` over the same vocabulary.

    Returns:
      step(tokens, states, position) -> (log of the mean probability, states); states is the tuple of theirs.
    """

    def step(
        tokens: jax.Array, states: tuple[State, ...], position: jax.Array
    ) -> tuple[jax.Array, tuple[State, ...]]:
        results = [one(tokens, state, position) for one, state in zip(steps, states, strict=True)]
        states = tuple(state for _, state in results)
        if len(results) == 1:
            return results[0][0], states
        logs = [log_probability(logits, log_z(logits)[..., None]) for logits, _ in results]
        return jax.nn.logsumexp(jnp.stack(logs), axis=0) - jnp.log(len(results)), states

    return step


def check_penalty(alpha: float | jax.Array, max_length: int) -> None:
    """Checks that scores over the length penalty are numbers, where `alpha` is known before tracing.

    Raises:
      ValueError: they are not.
    """
    if isinstance(alpha, int | float) and not abs(alpha * math.log((5 + max_length) / 6)) < LARGEST_LOG:
        raise ValueError(
            f"length_penalty must leave ((5 + length) / 6) ** length_penalty a float32, got {alpha} for up "
            f"to {max_length} tokens"
        )
