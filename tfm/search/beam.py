"""Beam search with length and coverage penalties (section 6.1; Wu et al. 2016, section 7)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tfm.search.hypotheses import (
    Constraints,
    Hypotheses,
    batch_of,
    check_capacity,
    check_penalty,
    check_tokens,
    follow_parents,
    gather_beams,
    no_hypotheses,
)
from tfm.search.scores import length_penalty, log_probability, normaliser


class _Beam(NamedTuple):
    """What the loop of beam search carries; a live score of -inf marks a hypothesis that is given up."""

    position: jax.Array  # of the next token, so the length of the live hypotheses
    last: jax.Array  # [B, W]
    live_tokens: jax.Array  # [B, W, T]
    live_scores: jax.Array  # [B, W] log-probabilities
    finished: Hypotheses
    state: object


def coverage_penalty(attention, source_mask, beta):
    """beta * sum over source places of log(min(attention received, 1)): Wu et al. 2016, equation 14.

    Args:
      attention: [B, W, M], the weights that a hypothesis' tokens gave to each source place, summed.
      source_mask: bool [B, M], True where the source has a token.
      beta: not negative.

    Returns:
      float32 [B, W], at most 0.
    """
    share = jnp.clip(attention.astype(jnp.float32), jnp.finfo(jnp.float32).tiny, 1.0)
    return beta * jnp.where(source_mask[:, None], jnp.log(share), 0.0).sum(-1)


def beam_search(
    step,
    state,
    *,
    beam_size,
    length_penalty,
    max_length,
    bos_id,
    eos_id,
    constraints=Constraints(),  # noqa: B008, a NamedTuple cannot change
    n_best=None,
    reorder=follow_parents,
    coverage=None,
):
    """Beam search that stops as soon as no live hypothesis can win (section 6.1).

    Each step extends every live prefix by every token. The best `beam_size` extensions without EOS live on;
    those with EOS compete for the `n_best` finished places by score. A live hypothesis is given up when even
    its own log-probability, under the mildest penalty still to come, would not win one of these places: it
    can only fall. The search ends when every live hypothesis is given up or at its limit.

    Args:
      step, state: the model, see `tfm.search`.
      beam_size: W.
      length_penalty: alpha; a hypothesis' score is its log-probability / ((5 + length) / 6) ** alpha.
      max_length: T, static.
      bos_id, eos_id: of the vocabulary.
      constraints: `Constraints` on the outputs.
      n_best: N <= W hypotheses to find, W when None. Fewer end the search earlier.
      reorder: (state, parents int32 [B, W]) -> state, how the state follows its hypotheses. The default
        gathers leaves, all [B, W, ...]; a model whose hypotheses share a pool of positions has a cheaper one.
      coverage: state -> float32 [B, W], at most 0, added to the score of a hypothesis that ends in this
        state, such as `coverage_penalty`; None adds nothing.

    Returns:
      `Hypotheses`, the best of each sentence first.

    Raises:
      ValueError: unless 1 <= n_best <= beam_size; a leaf of the state has not the axes it needs, or the
        state's own `max_length` is below this one; EOS is forbidden, a limit is below 1, an id is none of the
        logits, or no float32 holds a score under the length penalty.
    """
    n_best = beam_size if n_best is None else n_best
    if not 1 <= n_best <= beam_size:
        raise ValueError(f"expected 1 <= n_best <= beam_size, got n_best {n_best}, beam_size {beam_size}")
    batch = batch_of(state)
    check_capacity(state, max_length)
    check_penalty(length_penalty, max_length)
    constraints = constraints.resolve(batch, max_length, eos_id)

    def unfinished(beam):
        return (beam.live_scores > -jnp.inf).any()

    def advance(beam):
        logits, state = step(beam.last, beam.state, beam.position)
        check_tokens(logits, bos_id, eos_id, constraints)
        total = normaliser(logits)
        may_end = constraints.may_end(beam.position, eos_id)[:, None]
        ends = jnp.where(may_end, log_probability(logits[..., eos_id], total) + beam.live_scores, -jnp.inf)
        extra = 0.0 if coverage is None else coverage(state)
        finished = _finish(beam, ends, extra, eos_id, length_penalty, n_best)
        # Of one prefix no more than W tokens and EOS can matter; to look at all W * V at once is slower.
        best, choices = constraints.candidates(logits, beam.position, beam_size + 1)
        best = log_probability(jnp.where(choices == eos_id, -jnp.inf, best), total[..., None])
        live_scores, parents, tokens = _extend(beam.live_scores, best, choices)
        live_tokens = gather_beams(beam.live_tokens, parents).at[:, :, beam.position].set(tokens)
        length = beam.position + 1
        can_win = _bound(live_scores, length, constraints.limits[:, None], length_penalty)
        can_win = (can_win > finished.scores[:, -1:]) & ~constraints.at_limit(beam.position)[:, None]
        live_scores = jnp.where(can_win, live_scores, -jnp.inf)
        return _Beam(length, tokens, live_tokens, live_scores, finished, reorder(state, parents))

    start = _Beam(
        position=jnp.int32(0),
        last=jnp.full((batch, beam_size), bos_id, jnp.int32),
        live_tokens=jnp.zeros((batch, beam_size, max_length), jnp.int32),
        # One live prefix, the empty one.
        live_scores=jnp.full((batch, beam_size), -jnp.inf, jnp.float32).at[:, 0].set(0.0),
        finished=no_hypotheses(batch, n_best, max_length, score=-jnp.inf),
        state=state,
    )
    return jax.lax.while_loop(unfinished, advance, start).finished


def _bound(live_scores, length, limits, alpha):
    """The best score that prefixes of `length` tokens can still reach."""
    # The sign of alpha decides at which end, the next token or the limit, the penalty is mildest.
    return live_scores / jnp.maximum(length_penalty(length + 1, alpha), length_penalty(limits, alpha))


def _finish(beam, ends, extra, eos_id, alpha, n_best):
    """The best finished hypotheses among those so far and every live one ended here."""
    length = beam.position + 1
    ended = Hypotheses(
        tokens=beam.live_tokens.at[:, :, beam.position].set(eos_id),
        scores=ends / length_penalty(length, alpha) + extra,
        lengths=jnp.full(ends.shape, length),
    )
    both = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), beam.finished, ended)
    _, best = jax.lax.top_k(both.scores, n_best)  # of equals the first: no live one at -inf ever enters
    return gather_beams(both, best)


def _extend(live_scores, gained, tokens):
    """The best W extensions: their scores, parents and tokens, [B, W].

    Takes the candidates of each prefix: their log-probabilities and tokens, [B, W, candidates].
    """
    batch, width, count = tokens.shape
    scores = (live_scores[..., None] + gained).reshape(batch, width * count)
    best, index = jax.lax.top_k(scores, width)
    return best, index // count, jnp.take_along_axis(tokens.reshape(batch, width * count), index, axis=1)
