"""Sampling with a temperature, optionally from the top k tokens or from a nucleus."""

import functools
import math

import jax
import jax.numpy as jnp

from tfm.search.greedy import extend_independently
from tfm.search.hypotheses import Hypotheses
from tfm.search.limits import Limits
from tfm.search.state import State, Step

MIN_TEMPERATURE = 1e-6  # Logits that are divided by a smaller number could overflow.


def sample(
    step: Step,
    state: State,
    limits: Limits,
    *,
    batch_size: int,
    rng: jax.Array,
    samples: int = 1,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> Hypotheses:
    """Draws independent samples from the model.

    Args:
      step, state, limits, batch_size: See `beam_search`. W is `samples`.
      rng: A JAX random key, or keys [B]. Sample w of row b depends on the key of the row and on w. If `rng`
        is a single key, the sample also depends on b. It never depends on the other rows of the batch.
      samples: Number of samples of each row, N.
      temperature: Divisor of the logits, at least `MIN_TEMPERATURE`. Must be static.
      top_k: Number of most probable tokens that can be sampled. 0 means all tokens. Must be static.
      top_p: Samples are drawn only from the smallest set of most probable tokens whose total probability
        reaches this number (nucleus sampling, Holtzman et al. 2020). The probabilities include the
        temperature and `top_k`. Must be static.

    Returns:
      `Hypotheses` with N = `samples`, in arbitrary order. The scores are log-probabilities under the model,
      without temperature and truncation.

    Raises:
      ValueError: If temperature, top_k or top_p is out of range, or for the reasons in `beam_search` that
        concern the state and the limits. Limits that do not force EOS are allowed.
    """
    if not MIN_TEMPERATURE <= temperature < math.inf or top_k < 0 or not 0 < top_p <= 1:
        raise ValueError(
            f"Expected temperature at least {MIN_TEMPERATURE} (call greedy_search for temperature 0), top_k "
            f">= 0 and 0 < top_p <= 1, got {temperature}, {top_k} and {top_p}."
        )
    keys = rng if rng.ndim else jax.vmap(jax.random.fold_in, (None, 0))(rng, jnp.arange(batch_size))

    def sample_one(row_key, number, logits, position):
        key = functools.reduce(jax.random.fold_in, (number, position), row_key)
        return _sample_token(key, logits / temperature, top_k, top_p)

    def choose(logits, position):
        sample_row = jax.vmap(sample_one, (None, 0, 0, None))
        return jax.vmap(sample_row, (0, None, 0, None))(keys, jnp.arange(samples), logits, position)

    return extend_independently(step, state, limits, batch_size, samples, choose)


def _sample_token(key, logits, top_k, top_p):
    """Samples a token from logits [V], truncated to the `top_k` largest and then to the nucleus `top_p`."""
    if top_k == 0 and top_p == 1:
        return jax.random.categorical(key, logits)
    classes = logits.shape[-1]
    ordered, tokens = jax.lax.top_k(logits, min(top_k or classes, classes))
    if top_p < 1:
        probabilities = jax.nn.softmax(ordered)
        sum_before = jnp.cumsum(probabilities) - probabilities
        ordered = jnp.where(sum_before < top_p, ordered, -jnp.inf)
    return tokens[jax.random.categorical(key, ordered)]
