"""Beam search with length and coverage penalties (section 6.1; Wu et al. 2016, section 7)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tfm.search.constraints import Constraints, check_tokens
from tfm.search.hypotheses import Hypotheses, empty_hypotheses
from tfm.search.scores import check_penalty, length_penalty, log_probability, log_z
from tfm.search.state import State, Step, batch_size, check_capacity, gather_beams, reorder_leaves


class BeamTrace(NamedTuple):
    """What beam search held after each of S = `max_length` steps; those after its end repeat the last one.

    Attributes:
      tokens: int32 [S, B, W, T], the live prefixes; after step s the first s + 1 tokens count.
      scores: float32 [S, B, W], their log-probabilities; -inf marks a pruned one.
      finished: `Hypotheses` with a leading axis S: the best so far.
    """

    tokens: jax.Array
    scores: jax.Array
    finished: Hypotheses


class _Beam(NamedTuple):
    """What the loop of beam search carries; a live score of -inf marks a pruned hypothesis."""

    position: jax.Array  # of the next token, so the length of the live hypotheses
    last: jax.Array  # [B, W]
    live_tokens: jax.Array  # [B, W, T]
    live_scores: jax.Array  # [B, W] log-probabilities
    finished: Hypotheses
    state: State


def coverage_penalty(coverage: jax.Array, source_mask: jax.Array, beta: float) -> jax.Array:
    """beta * sum over source positions of log(min(coverage, 1)): Wu et al. 2016, equation 14.

    Args:
      coverage: [B, W, M], the attention weights of a hypothesis' tokens to each source position, summed.
      source_mask: bool [B, M], True where the source has a token.
      beta: not negative.

    Returns:
      float32 [B, W], at most 0.
    """
    covered = jnp.clip(coverage.astype(jnp.float32), jnp.finfo(jnp.float32).tiny, 1.0)
    return beta * jnp.where(source_mask[:, None], jnp.log(covered), 0.0).sum(-1)


def beam_search(
    step: Step,
    state: State,
    *,
    beam_size: int,
    length_penalty: float,
    max_length: int,
    bos_id: int,
    eos_id: int,
    constraints: Constraints = Constraints(),  # noqa: B008, a NamedTuple cannot change
    n_best: int | None = None,
    reorder: Callable[[State, jax.Array], State] = reorder_leaves,
    coverage: Callable[[State], jax.Array] | None = None,
) -> Hypotheses:
    """Beam search that stops as soon as no live hypothesis can win (section 6.1).

    Each step extends every live prefix by every token. The best `beam_size` extensions without EOS stay
    live; those with EOS compete for the `n_best` finished hypotheses by score. A live hypothesis is pruned
    when even its own log-probability, under the mildest length penalty still to come, would not be among
    these: it can only fall. The search ends when every live hypothesis is pruned or at its limit.

    Args:
      step, state: the model, see `tfm.search`.
      beam_size: W.
      length_penalty: alpha; a hypothesis' score is its log-probability / ((5 + length) / 6) ** alpha.
      max_length: T, static.
      bos_id, eos_id: of the vocabulary.
      constraints: `Constraints` on the outputs.
      n_best: N <= W hypotheses to find, W when None. Fewer end the search earlier.
      reorder: (state, parents int32 [B, W]) -> state whose hypothesis w continues `parents[b, w]`. The
        default gathers leaves, all [B, W, ...]; a model with a cache shared by all hypotheses has a cheaper
        one.
      coverage: state -> float32 [B, W], at most 0, added to the score of a hypothesis that ends in this
        state, such as `coverage_penalty`; None adds nothing.

    Returns:
      `Hypotheses`, the best of each row first.

    Raises:
      ValueError: unless 1 <= n_best <= beam_size; a leaf of the state lacks the axes it needs, or the
        state's own `max_length` is below this one; EOS is forbidden, a limit is below 1, an id is none of the
        logits, or no float32 holds a score under the length penalty.
    """
    start, unfinished, advance = _loop(
        step,
        state,
        beam_size=beam_size,
        length_penalty=length_penalty,
        max_length=max_length,
        bos_id=bos_id,
        eos_id=eos_id,
        constraints=constraints,
        n_best=n_best,
        reorder=reorder,
        coverage=coverage,
    )
    return jax.lax.while_loop(unfinished, advance, start).finished


def trace_beam_search(step: Step, state: State, **arguments: Any) -> tuple[Hypotheses, BeamTrace]:
    """`beam_search` of the same arguments and errors, and what it held after each step."""
    start, unfinished, advance = _loop(step, state, **arguments)

    def trace_step(beam, _):
        beam = jax.lax.cond(unfinished(beam), advance, lambda beam: beam, beam)
        return beam, BeamTrace(beam.live_tokens, beam.live_scores, beam.finished)

    last, trace = jax.lax.scan(trace_step, start, length=arguments["max_length"])
    return last.finished, trace


def _loop(
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
    reorder=reorder_leaves,
    coverage=None,
):
    """(the first `_Beam`, whether the search goes on after one, the next one); checks the arguments."""
    n_best = beam_size if n_best is None else n_best
    if not 1 <= n_best <= beam_size:
        raise ValueError(f"expected 1 <= n_best <= beam_size, got n_best {n_best}, beam_size {beam_size}")
    batch = batch_size(state)
    check_capacity(state, max_length)
    check_penalty(length_penalty, max_length)
    constraints = constraints.resolve(batch, max_length, eos_id)

    def unfinished(beam):
        return (beam.live_scores > -jnp.inf).any()

    def advance(beam):
        logits, state = step(beam.last, beam.state, beam.position)
        check_tokens(logits, bos_id, eos_id, constraints)
        total = log_z(logits)
        may_end = constraints.may_end(beam.position, eos_id)[:, None]
        ends = jnp.where(may_end, log_probability(logits[..., eos_id], total) + beam.live_scores, -jnp.inf)
        penalty = 0.0 if coverage is None else coverage(state)
        finished = _finish(beam, ends, penalty, eos_id, length_penalty, n_best)
        # At most W tokens of a prefix, and EOS, can stay in the beam; selecting from all W * V is slower.
        best, choices = constraints.candidates(logits, beam.position, beam_size + 1)
        best = log_probability(jnp.where(choices == eos_id, -jnp.inf, best), total[..., None])
        live_scores, parents, tokens = _extend(beam.live_scores, best, choices)
        live_tokens = gather_beams(beam.live_tokens, parents).at[:, :, beam.position].set(tokens)
        length = beam.position + 1
        can_win = _upper_bound(live_scores, length, constraints.limits[:, None], length_penalty)
        can_win = (can_win > finished.scores[:, -1:]) & ~constraints.at_limit(beam.position)[:, None]
        live_scores = jnp.where(can_win, live_scores, -jnp.inf)
        return _Beam(length, tokens, live_tokens, live_scores, finished, reorder(state, parents))

    start = _Beam(
        position=jnp.int32(0),
        last=jnp.full((batch, beam_size), bos_id, jnp.int32),
        live_tokens=jnp.zeros((batch, beam_size, max_length), jnp.int32),
        # One live prefix, the empty one.
        live_scores=jnp.full((batch, beam_size), -jnp.inf, jnp.float32).at[:, 0].set(0.0),
        finished=empty_hypotheses(batch, n_best, max_length, score=-jnp.inf),
        state=state,
    )
    return start, unfinished, advance


def _upper_bound(live_scores, length, limits, alpha):
    """The best score that prefixes of `length` tokens can still reach."""
    # The sign of alpha decides whether the penalty is mildest at the next token or at the limit.
    return live_scores / jnp.maximum(length_penalty(length + 1, alpha), length_penalty(limits, alpha))


def _finish(beam, ends, penalty, eos_id, alpha, n_best):
    """The best finished hypotheses among those so far and every live one ended here."""
    length = beam.position + 1
    ended = Hypotheses(
        tokens=beam.live_tokens.at[:, :, beam.position].set(eos_id),
        scores=ends / length_penalty(length, alpha) + penalty,
        lengths=jnp.full(ends.shape, length),
    )
    both = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), beam.finished, ended)
    _, best = jax.lax.top_k(both.scores, n_best)  # ties go to the first: no live one at -inf ever enters
    return gather_beams(both, best)


def _extend(live_scores, gained, tokens):
    """The best W extensions: their scores, parents and tokens, [B, W].

    Takes the candidates of each prefix: their log-probabilities and tokens, [B, W, candidates].
    """
    batch, width, count = tokens.shape
    scores = (live_scores[..., None] + gained).reshape(batch, width * count)
    best, index = jax.lax.top_k(scores, width)
    return best, index // count, jnp.take_along_axis(tokens.reshape(batch, width * count), index, axis=1)
