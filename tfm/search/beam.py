"""Beam search with length and coverage penalties (section 6.1; Wu et al. 2016, section 7)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tfm.losses import log_probability, log_z
from tfm.search.limits import Limits
from tfm.search.loops import Loop, run_together
from tfm.search.phrases import add_phrase_tokens, choose_from_banks, count_met, may_end_with
from tfm.search.state import (
    Hypotheses,
    State,
    Step,
    check_penalty,
    check_state,
    empty_hypotheses,
    gather_beams,
    length_penalty,
    reorder_leaves,
)


class BeamTrace(NamedTuple):
    """The beam after each of S = `max_length` steps. If the search ends earlier, its last beam is repeated.

    Attributes:
      tokens: int32 [S, B, W, T], the live prefixes. After step s, their first s + 1 tokens are valid.
      scores: float32 [S, B, W], log-probabilities of the live prefixes, or -inf for pruned prefixes.
      finished: The best finished `Hypotheses` after each step. The arrays have the additional first axis S.
    """

    tokens: jax.Array
    scores: jax.Array
    finished: Hypotheses


class _Beam(NamedTuple):
    """The values that the loop of beam search carries, see `tfm.search.loops`.

    Attributes:
      rows: int32 [B], the number of each row in the batch.
      position: Position of the next token. It equals the length of the live hypotheses.
      last: int32 [B, W], the last token of each live hypothesis.
      live_tokens: int32 [B, W, T].
      live_scores: float32 [B, W], log-probabilities of the live hypotheses. -inf marks a pruned hypothesis.
      finished: The best finished `Hypotheses`.
      state: The state of the step function.
    """

    rows: jax.Array
    position: jax.Array
    last: jax.Array
    live_tokens: jax.Array
    live_scores: jax.Array
    finished: Hypotheses
    state: State


def coverage_penalty(coverage: jax.Array, source_mask: jax.Array, beta: float) -> jax.Array:
    """Computes beta * sum over source positions of log(min(coverage, 1)) (Wu et al. 2016, equation 14).

    Args:
      coverage: [B, W, M], the attention weights of each source position, summed over a hypothesis' tokens.
      source_mask: bool [B, M], True where the source has a token.
      beta: Weight of the penalty, at least 0.

    Returns:
      float32 [B, W], at most 0.
    """
    covered = jnp.clip(coverage.astype(jnp.float32), jnp.finfo(jnp.float32).tiny, 1.0)
    return beta * jnp.where(source_mask[:, None], jnp.log(covered), 0.0).sum(-1)


def _is_unfinished(beam: _Beam) -> jax.Array:
    """Returns whether each row has a live hypothesis, bool [B]."""
    return (beam.live_scores > -jnp.inf).any(-1)


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
    run_loop: Loop = run_together,
) -> Hypotheses:
    """Finds probable outputs by beam search (section 6.1). It stops as soon as no live hypothesis can win.

    Each step extends every live prefix by every token. The best `beam_size` extensions without EOS stay live.
    Extensions with EOS compete for the `n_best` finished hypotheses by score. The log-probability of a live
    hypothesis can only fall. Therefore the search computes the best score that the hypothesis could still
    reach: its current log-probability, with the mildest length penalty that can still apply. The hypothesis
    is pruned if this score is not above the worst of the `n_best` finished hypotheses. The search ends when
    every live hypothesis is pruned or has reached its maximum length.

    Args:
      step, state: The model, see `tfm.search`.
      limits: `Limits` on the outputs.
      batch_size: Number of rows, B.
      beam_size: Number of live hypotheses of a row, W.
      length_penalty: Exponent alpha. The score of a hypothesis is its log-probability divided by
        ((5 + length) / 6) ** alpha.
      n_best: Number of hypotheses to return, N <= W. None means W. With a smaller number the search ends
        earlier.
      reorder: Function that maps (state, parents int32 [B, W]) to the state in which hypothesis w continues
        hypothesis `parents[b, w]`. The default gathers the leaves and requires that all of them are
        [B, W, ...]. A state in which hypotheses share memory can do this at less cost.
      coverage: Function that maps the state to a penalty float32 [B, W], at most 0, such as
        `coverage_penalty`. The penalty is added to the score of each hypothesis that ends in this state. None
        means no penalty.
      run_loop: The `tfm.search.loops.Loop`. `run_in_stages` needs a step function that does not depend on
        arrays [B, ...] outside the state.

    Returns:
      `Hypotheses`. The best hypothesis of each row is the first.

    Raises:
      ValueError: If `n_best` is not from 1 to `beam_size`, if the state does not fit the batch or
        `max_length`, if an id is not in the vocabulary, if no output satisfies the limits, if the limits do
        not force EOS, or if the length penalty would make scores exceed float32.
    """
    count = beam_size if n_best is None else n_best
    if not 1 <= count <= beam_size:
        raise ValueError(f"Expected 1 <= n_best <= beam_size, got n_best {count} and beam_size {beam_size}.")
    if not limits.force_eos:
        raise ValueError(
            "Expected limits.force_eos to be True, because beam search compares finished outputs, got False."
        )
    check_state(state, batch_size, limits.max_length)
    check_penalty(length_penalty, limits.max_length)
    all_limits = limits.for_batch(batch_size)

    def advance(beam):
        limits = all_limits.take(beam.rows)
        logits, state = step(beam.last, beam.state, beam.position)
        limits.check_tokens(logits)
        logits = limits.penalize(logits, beam.live_tokens, beam.position)
        total = log_z(logits)
        scores = log_probability(logits[..., limits.eos_id], total) + beam.live_scores
        # A hypothesis with the score NaN always ends, so that the caller receives the NaN.
        may_end = limits.may_end(beam.position)[:, None] & _has_phrases(beam, limits) | jnp.isnan(scores)
        penalty = 0.0 if coverage is None else coverage(state)
        scores = jnp.where(may_end, scores, -jnp.inf)
        finished = _finish(beam, scores, penalty, limits.eos_id, length_penalty)
        # Only W + 1 tokens after each prefix matter: at most W can stay in the beam, and EOS is not one of
        # them. Selecting from all W * V tokens would be slower.
        allowed = limits.mask_repetition(logits, beam.live_tokens, beam.position)
        best, tokens = limits.best_tokens(allowed, beam.position, beam_size + 1)
        best = log_probability(jnp.where(tokens == limits.eos_id, -jnp.inf, best), total[..., None])
        if limits.constraints.phrases is None:
            live_scores, parents, tokens = _extend(beam.live_scores, best, tokens)
        else:
            allowed = log_probability(limits.mask_logits(allowed, beam.position), total[..., None])
            live_scores, parents, tokens = _extend_by_phrases(beam, best, tokens, allowed, limits)
        live_tokens = gather_beams(beam.live_tokens, parents).at[:, :, beam.position].set(tokens)
        length = beam.position + 1
        bound = _upper_bound(live_scores, length, limits.max_lengths[:, None], length_penalty)
        can_win = (bound > finished.scores[:, -1:]) & ~limits.must_end(beam.position)[:, None]
        live_scores = jnp.where(can_win, live_scores, -jnp.inf)
        return _Beam(beam.rows, length, tokens, live_tokens, live_scores, finished, reorder(state, parents))

    start = _Beam(
        rows=jnp.arange(batch_size),
        position=jnp.int32(0),
        last=limits.first_tokens(batch_size, beam_size),
        live_tokens=jnp.zeros((batch_size, beam_size, limits.max_length), jnp.int32),
        # Only the first hypothesis is live. It is the empty prefix.
        live_scores=jnp.full((batch_size, beam_size), -jnp.inf, jnp.float32).at[:, 0].set(0.0),
        finished=empty_hypotheses(batch_size, count, limits.max_length, score=-jnp.inf),
        state=state,
    )
    return run_loop(_is_unfinished, advance, start)


def trace_beam_search(
    step: Step, state: State, limits: Limits, **options: Any
) -> tuple[Hypotheses, BeamTrace]:
    """Runs `beam_search` and also returns the beam after each step.

    The arguments and the errors are those of `beam_search`, but there is no argument `run_loop`.
    """

    def run_loop(is_unfinished, advance, start):
        def trace_step(beam, _):
            beam = jax.lax.cond(is_unfinished(beam).any(), advance, lambda beam: beam, beam)
            return beam, BeamTrace(beam.live_tokens, beam.live_scores, beam.finished)

        last, trace = jax.lax.scan(trace_step, start, length=limits.max_length)
        return last.finished, trace

    result: Any = beam_search(step, state, limits, **options, run_loop=run_loop)
    return result


def _upper_bound(
    live_scores: jax.Array, length: jax.Array, max_lengths: jax.Array, alpha: float
) -> jax.Array:
    """Returns the best scores [B, W] that live prefixes of `length` tokens can still reach."""
    # The penalty is mildest at the next token or at the maximum length, depending on the sign of alpha.
    return live_scores / jnp.maximum(length_penalty(length + 1, alpha), length_penalty(max_lengths, alpha))


def _finish(
    beam: _Beam, scores: jax.Array, penalty: jax.Array | float, eos_id: int, alpha: float
) -> Hypotheses:
    """Returns the best N of the finished hypotheses and of all live hypotheses extended by EOS.

    `scores` [B, W] are the log-probabilities of the live hypotheses with EOS, and `penalty` is the coverage
    penalty.
    """
    length = beam.position + 1
    ended = Hypotheses(
        tokens=beam.live_tokens.at[:, :, beam.position].set(eos_id),
        scores=scores / length_penalty(length, alpha) + penalty,
        lengths=jnp.full(scores.shape, length),
    )
    both = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), beam.finished, ended)
    # Among equal scores, `top_k` prefers the finished hypotheses, so a live score of -inf replaces nothing.
    _, best = jax.lax.top_k(both.scores, beam.finished.scores.shape[1])
    return gather_beams(both, best)


def _extend(
    live_scores: jax.Array, gained: jax.Array, tokens: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the scores, the parents and the last tokens, each [B, W], of the best W extensions of a row.

    Args:
      live_scores: Log-probabilities of the prefixes, [B, W].
      gained, tokens: Log-probabilities and ids of the best K tokens after each prefix, [B, W, K].
    """
    batch_size, width, count = tokens.shape
    scores = (live_scores[..., None] + gained).reshape(batch_size, width * count)
    best, index = jax.lax.top_k(scores, width)
    tokens = jnp.take_along_axis(tokens.reshape(batch_size, width * count), index, axis=1)
    return best, index // count, tokens


def _has_phrases(beam: _Beam, limits: Limits) -> jax.Array | bool:
    """Returns whether EOS may follow the live hypotheses, bool [B, W], as far as phrases are concerned."""
    phrases = limits.constraints.phrases
    if phrases is None:
        return True
    has_finished = beam.finished.scores[:, 0] > -jnp.inf
    must_end = limits.must_end(beam.position)
    return may_end_with(beam.live_tokens, beam.position, jnp.asarray(phrases), must_end, has_finished)


def _extend_by_phrases(
    beam: _Beam, gained: jax.Array, tokens: jax.Array, allowed: jax.Array, limits: Limits
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns what `_extend` returns. The candidates also include the next tokens of phrases.

    `allowed` [B, W, V] are the log-probabilities of all tokens. -inf marks a token that the limits exclude.
    """
    phrases = jnp.asarray(limits.constraints.phrases)
    batch_size, width = beam.live_scores.shape
    wanted = add_phrase_tokens(*count_met(beam.live_tokens, beam.position, phrases), phrases, tokens)
    of_wanted = jnp.take_along_axis(allowed, jnp.maximum(wanted, 0), axis=-1)
    gained = jnp.concatenate([gained, jnp.where(wanted < 0, -jnp.inf, of_wanted)], axis=-1)
    tokens = jnp.concatenate([tokens, jnp.maximum(wanted, 0)], axis=-1).reshape(batch_size, -1)
    scores = (beam.live_scores[..., None] + gained).reshape(batch_size, -1)
    parents = jnp.broadcast_to(jnp.repeat(jnp.arange(width), gained.shape[-1]), tokens.shape)
    extended = gather_beams(beam.live_tokens, parents).at[:, :, beam.position].set(tokens)
    met = count_met(extended, beam.position + 1, phrases)[0].sum(-1)
    index = choose_from_banks(scores, met, width)
    return tuple(jnp.take_along_axis(x, index, axis=1) for x in (scores, parents, tokens))  # type: ignore
