"""Greedy search, and the loop of greedy search and sampling. Hypotheses do not compete in this loop."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from tfm.search import scores
from tfm.search.hypotheses import Hypotheses, empty_hypotheses
from tfm.search.limits import Limits
from tfm.search.state import State, Step, check_state
from tfm.search.top_k import largest


def greedy_search(
    step: Step, state: State, limits: Limits, *, batch_size: int, length_penalty: float = 0.0
) -> Hypotheses:
    """Finds the output that has the most probable token at each position.

    A beam search with one hypothesis can return another output, because it also considers outputs that end
    in an EOS that was not the most probable token.

    Args:
      step, state, limits, batch_size, length_penalty: See `beam_search`. W is 1.

    Returns:
      `Hypotheses` with N = 1. The score is computed as in a beam search.

    Raises:
      ValueError: See `beam_search`. Limits that do not force EOS are allowed.
    """
    scores.check_penalty(length_penalty, limits.max_length)
    outputs = extend_independently(step, state, limits, batch_size, 1, lambda logits, _: largest(logits))
    return outputs._replace(scores=outputs.scores / scores.length_penalty(outputs.lengths, length_penalty))


def extend_independently(
    step: Step,
    state: State,
    limits: Limits,
    batch_size: int,
    width: int,
    choose: Callable[[jax.Array, jax.Array], jax.Array],
) -> Hypotheses:
    """Extends W independent prefixes of each row until all of them have ended.

    Args:
      step, state, limits, batch_size: See `beam_search`.
      width: Number of prefixes of a row, W.
      choose: Function that maps (logits [B, W, V], position) to the next tokens int [B, W]. The logits of
        tokens that are not allowed are -inf.

    Returns:
      `Hypotheses` with N = W. The scores are log-probabilities under the model.

    Raises:
      ValueError: If the state does not fit the batch or `max_length`, if an id is not in the vocabulary, or
        if no output satisfies the limits.
    """
    check_state(state, batch_size, limits.max_length)
    limits = limits.for_batch(batch_size)

    def is_live(hypotheses):
        return (hypotheses.lengths == 0) & (hypotheses.scores > -jnp.inf)

    def advance(carry):
        position, last, found, state = carry
        logits, state = step(last, state, position)
        limits.check_tokens(logits)
        allowed = limits.mask_logits(logits, position).astype(jnp.float32)
        tokens = jnp.where(limits.must_end(position)[:, None], limits.eos_id, choose(allowed, position))
        chosen_logit = jnp.take_along_axis(allowed, tokens[..., None], axis=-1)[..., 0]
        gained = scores.log_probability(chosen_logit, scores.log_z(logits))
        tokens = jnp.where(is_live(found), tokens, 0).astype(jnp.int32)
        ends = is_live(found) & (tokens == limits.eos_id)
        found = Hypotheses(
            tokens=found.tokens.at[:, :, position].set(tokens),
            scores=jnp.where(is_live(found), found.scores + gained, found.scores),
            lengths=jnp.where(ends, position + 1, found.lengths),
        )
        return position + 1, tokens, found, state

    empty = empty_hypotheses(batch_size, width, limits.max_length, score=0.0)
    last = jnp.full((batch_size, width), limits.bos_id, jnp.int32)
    start = (jnp.int32(0), last, empty, state)

    def is_unfinished(carry):
        return is_live(carry[2]).any() & (carry[0] < limits.max_length)

    found = jax.lax.while_loop(is_unfinished, advance, start)[2]
    exists = found.scores > -jnp.inf
    lengths = jnp.where(is_live(found), limits.max_length, found.lengths)  # outputs without EOS
    return Hypotheses(found.tokens * exists[..., None], found.scores, lengths * exists)
