"""Beam search with length and coverage penalties (section 6.1; Wu et al. 2016, section 7)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tfm.search.hypotheses import Hypotheses, empty_hypotheses
from tfm.search.limits import Limits
from tfm.search.scores import check_penalty, length_penalty, log_probability, log_z
from tfm.search.state import State, Step, check_state, gather_beams, reorder_leaves


class BeamTrace(NamedTuple):
    """The beam after each of S = `max_length` steps. Steps after the end of the search repeat its last step.

    Attributes:
      tokens: int32 [S, B, W, T], the live prefixes. After step s, their first s + 1 tokens are valid.
      scores: float32 [S, B, W], log-probabilities of the live prefixes, or -inf for pruned prefixes.
      finished: The best `Hypotheses` until then, with a leading axis S.
    """

    tokens: jax.Array
    scores: jax.Array
    finished: Hypotheses


class _Beam(NamedTuple):
    """The values that the loop of beam search carries. A live score of -inf marks a pruned hypothesis."""

    position: jax.Array  # of the next token, which equals the length of the live hypotheses
    last: jax.Array  # [B, W]
    live_tokens: jax.Array  # [B, W, T]
    live_scores: jax.Array  # [B, W] log-probabilities
    finished: Hypotheses
    state: State


def coverage_penalty(coverage: jax.Array, source_mask: jax.Array, beta: float) -> jax.Array:
    """Computes beta * sum over source positions of log(min(coverage, 1)) (Wu et al. 2016, equation 14).

    Args:
      coverage: [B, W, M], the sum of the attention weights of a hypothesis' tokens to each source position.
      source_mask: bool [B, M], True where the source has a token.
      beta: Not negative.

    Returns:
      float32 [B, W], at most 0.
    """
    covered = jnp.clip(coverage.astype(jnp.float32), jnp.finfo(jnp.float32).tiny, 1.0)
    return beta * jnp.where(source_mask[:, None], jnp.log(covered), 0.0).sum(-1)


def beam_search(
    step: Step,
    state: State,
    limits: Limits,
    *,
    batch_size: int,
    beam_size: int,
    length_penalty: float,
    n_best: int | None = None,
    reorder: Callable[[State, jax.Array], State] = reorder_leaves,
    coverage: Callable[[State], jax.Array] | None = None,
) -> Hypotheses:
    """Finds probable outputs by a beam search that stops as soon as no live hypothesis can win (section 6.1).

    Each step extends every live prefix by every token. The best `beam_size` extensions without EOS stay live.
    Extensions with EOS compete for the `n_best` finished hypotheses by score. A live hypothesis is pruned if
    even its current log-probability, under the mildest length penalty that can still apply, would not be
    among the finished hypotheses, because its log-probability can only fall. The search ends when every live
    hypothesis is pruned or at its limit.

    Args:
      step, state: The model, see `tfm.search`.
      limits: `Limits` on the outputs.
      batch_size: B.
      beam_size: W.
      length_penalty: alpha. The score of a hypothesis is its log-probability / ((5 + length) / 6) ** alpha.
      n_best: Number of hypotheses to find, N <= W. None stands for W. Fewer end the search earlier.
      reorder: (state, parents int32 [B, W]) -> state whose hypothesis w continues `parents[b, w]`. The
        default gathers leaves, which must all be [B, W, ...]. A shared cache has a cheaper way.
      coverage: state -> float32 [B, W], at most 0, such as `coverage_penalty`. It is added to the score of
        each hypothesis that ends in this state. None adds nothing.

    Returns:
      `Hypotheses`, the best of each row first.

    Raises:
      ValueError: `n_best` is not from 1 to `beam_size`, the state does not fit the batch or `max_length`, an
        id is not in the vocabulary, no output satisfies the limits, they do not force EOS, or scores under
        the length penalty are beyond float32.
    """
    start, is_unfinished, advance = _make_loop(
        step,
        state,
        limits,
        batch_size=batch_size,
        beam_size=beam_size,
        length_penalty=length_penalty,
        n_best=n_best,
        reorder=reorder,
        coverage=coverage,
    )
    return jax.lax.while_loop(is_unfinished, advance, start).finished


def trace_beam_search(
    step: Step, state: State, limits: Limits, **options: Any
) -> tuple[Hypotheses, BeamTrace]:
    """Runs `beam_search`, with the same arguments and errors, and also returns the beam after each step."""
    start, is_unfinished, advance = _make_loop(step, state, limits, **options)

    def trace_step(beam, _):
        beam = jax.lax.cond(is_unfinished(beam), advance, lambda beam: beam, beam)
        return beam, BeamTrace(beam.live_tokens, beam.live_scores, beam.finished)

    last, trace = jax.lax.scan(trace_step, start, length=limits.max_length)
    return last.finished, trace


def _make_loop(
    step: Step,
    state: State,
    limits: Limits,
    *,
    batch_size: int,
    beam_size: int,
    length_penalty: float,
    n_best: int | None = None,
    reorder: Callable[[State, jax.Array], State] = reorder_leaves,
    coverage: Callable[[State], jax.Array] | None = None,
) -> tuple[_Beam, Callable[[_Beam], jax.Array], Callable[[_Beam], _Beam]]:
    """Checks the arguments of a beam search. Returns its first beam, whether a beam goes on, and its step."""
    count = beam_size if n_best is None else n_best
    if not 1 <= count <= beam_size:
        raise ValueError(f"Expected 1 <= n_best <= beam_size, got n_best {count} and beam_size {beam_size}.")
    if not limits.force_eos:
        raise ValueError("Expected limits.force_eos for a beam search, which compares finished outputs.")
    check_state(state, batch_size, limits.max_length)
    check_penalty(length_penalty, limits.max_length)
    limits = limits.for_batch(batch_size)

    def is_unfinished(beam):
        return (beam.live_scores > -jnp.inf).any()

    def advance(beam):
        logits, state = step(beam.last, beam.state, beam.position)
        limits.check_tokens(logits)
        total = log_z(logits)
        scores = log_probability(logits[..., limits.eos_id], total) + beam.live_scores
        # A score of NaN always ends, so that the caller sees it.
        may_end = limits.may_end(beam.position)[:, None] | jnp.isnan(scores)
        penalty = 0.0 if coverage is None else coverage(state)
        scores = jnp.where(may_end, scores, -jnp.inf)
        finished = _finish(beam, scores, penalty, limits.eos_id, length_penalty, count)
        # At most W tokens of a prefix, and EOS, can stay in the beam. Selecting from all W * V is slower.
        best, tokens = limits.best_tokens(logits, beam.position, beam_size + 1)
        best = log_probability(jnp.where(tokens == limits.eos_id, -jnp.inf, best), total[..., None])
        live_scores, parents, tokens = _extend(beam.live_scores, best, tokens)
        live_tokens = gather_beams(beam.live_tokens, parents).at[:, :, beam.position].set(tokens)
        length = beam.position + 1
        bound = _upper_bound(live_scores, length, limits.max_lengths[:, None], length_penalty)
        can_win = (bound > finished.scores[:, -1:]) & ~limits.must_end(beam.position)[:, None]
        live_scores = jnp.where(can_win, live_scores, -jnp.inf)
        return _Beam(length, tokens, live_tokens, live_scores, finished, reorder(state, parents))

    start = _Beam(
        position=jnp.int32(0),
        last=jnp.full((batch_size, beam_size), limits.bos_id, jnp.int32),
        live_tokens=jnp.zeros((batch_size, beam_size, limits.max_length), jnp.int32),
        # Only the first hypothesis is live, the empty prefix.
        live_scores=jnp.full((batch_size, beam_size), -jnp.inf, jnp.float32).at[:, 0].set(0.0),
        finished=empty_hypotheses(batch_size, count, limits.max_length, score=-jnp.inf),
        state=state,
    )
    return start, is_unfinished, advance


def _upper_bound(live_scores, length, max_lengths, alpha):
    """Returns the best scores that prefixes of `length` tokens can still reach."""
    # The sign of alpha decides whether the penalty is mildest at the next token or at the limit.
    return live_scores / jnp.maximum(length_penalty(length + 1, alpha), length_penalty(max_lengths, alpha))


def _finish(beam, scores, penalty, eos_id, alpha, n_best):
    """Returns the best of the finished hypotheses and all live ones, ended here with these scores."""
    length = beam.position + 1
    ended = Hypotheses(
        tokens=beam.live_tokens.at[:, :, beam.position].set(eos_id),
        scores=scores / length_penalty(length, alpha) + penalty,
        lengths=jnp.full(scores.shape, length),
    )
    both = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), beam.finished, ended)
    _, best = jax.lax.top_k(both.scores, n_best)  # prefers the first of equals, so -inf never enters
    return gather_beams(both, best)


def _extend(live_scores, gained, tokens):
    """Returns scores, parents and tokens [B, W] of the best W extensions.

    Args:
      live_scores: [B, W] of the prefixes.
      gained, tokens: [B, W, K], the log-probabilities and ids of the best tokens after each prefix.
    """
    batch_size, width, count = tokens.shape
    scores = (live_scores[..., None] + gained).reshape(batch_size, width * count)
    best, index = jax.lax.top_k(scores, width)
    tokens = jnp.take_along_axis(tokens.reshape(batch_size, width * count), index, axis=1)
    return best, index // count, tokens
