"""Greedy search, and the loop that it shares with sampling: hypotheses that do not compete."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from tfm.search import scores
from tfm.search.constraints import Constraints, check_tokens
from tfm.search.hypotheses import Hypotheses, empty_hypotheses
from tfm.search.scores import log_probability, log_z
from tfm.search.state import State, Step, batch_size, check_capacity


def greedy_search(
    step: Step,
    state: State,
    *,
    length_penalty: float = 0.0,
    max_length: int,
    bos_id: int,
    eos_id: int,
    constraints: Constraints = Constraints(),  # noqa: B008, a NamedTuple cannot change
) -> Hypotheses:
    """The most probable token at each position: `Hypotheses` with N = 1, scored as those of a beam.

    The arguments are those of `beam_search`, with W = 1. A beam of size 1 is something else: it also
    considers an EOS that was not the most probable token.
    """
    scores.check_penalty(length_penalty, max_length)
    found = extend_independently(
        step, state, lambda logits, _: logits.argmax(-1), 1, max_length, bos_id, eos_id, constraints
    )
    return found._replace(scores=found.scores / scores.length_penalty(found.lengths, length_penalty))


def extend_independently(
    step: Step,
    state: State,
    choose: Callable[[jax.Array, jax.Array], jax.Array],
    width: int,
    max_length: int,
    bos_id: int,
    eos_id: int,
    constraints: Constraints,
) -> Hypotheses:
    """Extends W = `width` independent prefixes until each has ended.

    Args:
      step, state, max_length, bos_id, eos_id, constraints: as in `beam_search`.
      choose: (logits [B, W, V], -inf where a token is not allowed; position) -> tokens int [B, W].
      width: W.

    Returns:
      `Hypotheses` with N = W; the scores are the model's own log-probabilities.
    """
    batch = batch_size(state)
    check_capacity(state, max_length)
    constraints = constraints.resolve(batch, max_length, eos_id)

    def live(found):
        return (found.lengths == 0) & (found.scores > -jnp.inf)

    def advance(carry):
        position, last, found, state = carry
        logits, state = step(last, state, position)
        check_tokens(logits, bos_id, eos_id, constraints)
        allowed = constraints.mask_logits(logits, position, eos_id).astype(jnp.float32)
        must_end = constraints.at_limit(position)[:, None]
        tokens = jnp.where(must_end, eos_id, choose(allowed, position))
        chosen_logit = jnp.take_along_axis(allowed, tokens[..., None], axis=-1)[..., 0]
        gained = log_probability(chosen_logit, log_z(logits))
        tokens = jnp.where(live(found), tokens, 0).astype(jnp.int32)
        found = Hypotheses(
            tokens=found.tokens.at[:, :, position].set(tokens),
            scores=jnp.where(live(found), found.scores + gained, found.scores),
            lengths=jnp.where(live(found) & (tokens == eos_id), position + 1, found.lengths),
        )
        return position + 1, tokens, found, state

    empty = empty_hypotheses(batch, width, max_length, score=0.0)
    start = (jnp.int32(0), jnp.full((batch, width), bos_id, jnp.int32), empty, state)
    found = jax.lax.while_loop(lambda carry: live(carry[2]).any(), advance, start)[2]
    possible = found.scores > -jnp.inf
    return Hypotheses(found.tokens * possible[..., None], found.scores, found.lengths * possible)
