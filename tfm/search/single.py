"""Searches whose hypotheses know nothing of each other: greedy and sampling."""

import functools
import math

import jax
import jax.numpy as jnp

from tfm.search import scores
from tfm.search.hypotheses import (
    Constraints,
    Hypotheses,
    batch_of,
    check_capacity,
    check_penalty,
    check_tokens,
    no_hypotheses,
)
from tfm.search.scores import log_probability, normaliser

COLDEST = 1e-6  # temperature


def greedy_search(
    step,
    state,
    *,
    length_penalty=0.0,
    max_length,
    bos_id,
    eos_id,
    constraints=Constraints(),  # noqa: B008, a NamedTuple cannot change
):
    """The most probable token at each place: `Hypotheses` with N = 1, scored as those of a beam.

    The arguments are those of `beam_search`, with W = 1. A beam of size 1 is something else: it also weighs
    an EOS that was not the most probable token.
    """
    check_penalty(length_penalty, max_length)
    found = _follow(
        step, state, lambda logits, _: logits.argmax(-1), 1, max_length, bos_id, eos_id, constraints
    )
    return found._replace(scores=found.scores / scores.length_penalty(found.lengths, length_penalty))


def sample(
    step,
    state,
    rng,
    *,
    samples=1,
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    max_length,
    bos_id,
    eos_id,
    constraints=Constraints(),  # noqa: B008, a NamedTuple cannot change
):
    """Independent samples from the model: `Hypotheses` with N = `samples`, in no order.

    Args:
      step, state, max_length, bos_id, eos_id, constraints: as in `beam_search`; W = `samples`.
      rng: a JAX random key, or keys [B]. Sample w of row b depends on the key, w and, unless the row has a
        key of its own, b; not on the rows beside it.
      samples: N.
      temperature: divides the logits; at least `COLDEST`, below which they overflow; static.
      top_k: draws only from the so many most probable tokens; 0 is all.
      top_p: draws only from the fewest most probable tokens whose probabilities reach this sum (nucleus
        sampling, Holtzman et al. 2020), counted after temperature and `top_k`.

    Returns:
      `Hypotheses`; the scores are log-probabilities under the model itself, before temperature and cuts.

    Raises:
      ValueError: a temperature, top_k or top_p out of range, or what `beam_search` raises of state and
        constraints.
    """
    if not COLDEST <= temperature < math.inf or top_k < 0 or not 0 < top_p <= 1:
        expected = f"temperature at least {COLDEST} (for 0 use greedy_search), top_k >= 0 and 0 < top_p <= 1"
        raise ValueError(f"expected {expected}, got {temperature}, {top_k} and {top_p}")
    batch = batch_of(state)
    rows = rng if rng.ndim else jax.vmap(jax.random.fold_in, (None, 0))(rng, jnp.arange(batch))

    def draw(row, number, logits, position):
        key = functools.reduce(jax.random.fold_in, (number, position), row)
        return _draw(key, logits / temperature, top_k, top_p)

    def choose(logits, position):
        each = jax.vmap(draw, (None, 0, 0, None))
        return jax.vmap(each, (0, None, 0, None))(rows, jnp.arange(samples), logits, position)

    return _follow(step, state, choose, samples, max_length, bos_id, eos_id, constraints)


def _follow(step, state, choose, width, max_length, bos_id, eos_id, constraints):
    """Extends W independent prefixes by the tokens [B, W] that `choose(logits, position)` picks."""
    batch = batch_of(state)
    check_capacity(state, max_length)
    constraints = constraints.resolve(batch, max_length, eos_id)

    def live(found):
        return (found.lengths == 0) & (found.scores > -jnp.inf)

    def advance(carry):
        position, last, found, state = carry
        logits, state = step(last, state, position)
        check_tokens(logits, bos_id, eos_id, constraints)
        allowed = constraints.restrict(logits, position, eos_id).astype(jnp.float32)
        must_end = constraints.at_limit(position)[:, None]
        tokens = jnp.where(must_end, eos_id, choose(allowed, position))
        gained = jnp.take_along_axis(allowed, tokens[..., None], axis=-1)[..., 0]
        gained = log_probability(gained, normaliser(logits))
        tokens = jnp.where(live(found), tokens, 0).astype(jnp.int32)
        found = Hypotheses(
            tokens=found.tokens.at[:, :, position].set(tokens),
            scores=jnp.where(live(found), found.scores + gained, found.scores),
            lengths=jnp.where(live(found) & (tokens == eos_id), position + 1, found.lengths),
        )
        return position + 1, tokens, found, state

    nothing = no_hypotheses(batch, width, max_length, score=0.0)
    start = (jnp.int32(0), jnp.full((batch, width), bos_id, jnp.int32), nothing, state)
    found = jax.lax.while_loop(lambda carry: live(carry[2]).any(), advance, start)[2]
    possible = found.scores > -jnp.inf
    return Hypotheses(found.tokens * possible[..., None], found.scores, found.lengths * possible)


def _draw(key, logits, top_k, top_p):
    """One token, of logits [V] cut to the `top_k` most probable and then to the nucleus `top_p`."""
    if top_k == 0 and top_p == 1:
        return jax.random.categorical(key, logits)
    classes = logits.shape[-1]
    ordered, tokens = jax.lax.top_k(logits, min(top_k or classes, classes))
    if top_p < 1:
        probabilities = jax.nn.softmax(ordered)
        before = jnp.cumsum(probabilities) - probabilities
        ordered = jnp.where(before < top_p, ordered, -jnp.inf)
    return tokens[jax.random.categorical(key, ordered)]
