"""Sampling with temperature, and truncated to the top k tokens or to a nucleus."""

import functools
import math

import jax
import jax.numpy as jnp

from tfm.search.constraints import Constraints
from tfm.search.greedy import extend_independently
from tfm.search.hypotheses import Hypotheses
from tfm.search.state import State, Step, batch_size

COLDEST = 1e-6  # temperature


def sample(
    step: Step,
    state: State,
    rng: jax.Array,
    *,
    samples: int = 1,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    max_length: int,
    bos_id: int,
    eos_id: int,
    constraints: Constraints = Constraints(),  # noqa: B008, a NamedTuple cannot change
) -> Hypotheses:
    """Independent samples from the model: `Hypotheses` with N = `samples`, in no order.

    Args:
      step, state, max_length, bos_id, eos_id, constraints: as in `beam_search`; W = `samples`.
      rng: a JAX random key, or keys [B]. Sample w of row b depends on the key, w and, unless the row has a
        key of its own, b; not on the rows beside it.
      samples: N.
      temperature: divides the logits; at least `COLDEST`, below which they overflow; static.
      top_k: samples only from the `top_k` most probable tokens; 0 is all.
      top_p: samples only from the fewest most probable tokens whose probabilities reach this sum (nucleus
        sampling, Holtzman et al. 2020), counted after temperature and `top_k`.

    Returns:
      `Hypotheses`; the scores are log-probabilities under the model itself, before temperature and
      truncation.

    Raises:
      ValueError: a temperature, top_k or top_p out of range, or what `beam_search` raises of state and
        constraints.
    """
    if not COLDEST <= temperature < math.inf or top_k < 0 or not 0 < top_p <= 1:
        expected = f"temperature at least {COLDEST} (for 0 use greedy_search), top_k >= 0 and 0 < top_p <= 1"
        raise ValueError(f"expected {expected}, got {temperature}, {top_k} and {top_p}")
    batch = batch_size(state)
    keys = rng if rng.ndim else jax.vmap(jax.random.fold_in, (None, 0))(rng, jnp.arange(batch))

    def sample_one(row_key, number, logits, position):
        key = functools.reduce(jax.random.fold_in, (number, position), row_key)
        return _sample_token(key, logits / temperature, top_k, top_p)

    def choose(logits, position):
        sample_row = jax.vmap(sample_one, (None, 0, 0, None))
        return jax.vmap(sample_row, (0, None, 0, None))(keys, jnp.arange(samples), logits, position)

    return extend_independently(step, state, choose, samples, max_length, bos_id, eos_id, constraints)


def _sample_token(key, logits, top_k, top_p):
    """One token, of logits [V] truncated to the `top_k` most probable and then to the nucleus `top_p`."""
    if top_k == 0 and top_p == 1:
        return jax.random.categorical(key, logits)
    classes = logits.shape[-1]
    ordered, tokens = jax.lax.top_k(logits, min(top_k or classes, classes))
    if top_p < 1:
        probabilities = jax.nn.softmax(ordered)
        sum_before = jnp.cumsum(probabilities) - probabilities
        ordered = jnp.where(sum_before < top_p, ordered, -jnp.inf)
    return tokens[jax.random.categorical(key, ordered)]
