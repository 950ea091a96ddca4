"""Greedy search and sampling, whose hypotheses do not compete. Sampling can be truncated."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tfm.losses import log_probability, log_z
from tfm.search import state as search_state
from tfm.search.limits import Limits
from tfm.search.loops import Loop, run_together
from tfm.search.state import Hypotheses, State, Step, check_state, empty_hypotheses
from tfm.search.top_k import largest

MIN_TEMPERATURE = 1e-6  # Logits that are divided by a smaller number could overflow.


class _Prefixes(NamedTuple):
    """The values that the loop of greedy search and sampling carries, see `tfm.search.loops`.

    Attributes:
      rows: int32 [B], the number of each row in the batch.
      position: Position of the next token.
      last: int32 [B, W], the last token of each prefix.
      finished: `Hypotheses` with all prefixes. The length of a prefix is 0 until it has ended.
      state: The state of the step function.
    """

    rows: jax.Array
    position: jax.Array
    last: jax.Array
    finished: Hypotheses
    state: State


def greedy_search(
    step: Step,
    state: State,
    limits: Limits,
    *,
    batch_size: int,
    length_penalty: float = 0.0,
    run_loop: Loop = run_together,
) -> Hypotheses:
    """Finds the output that has the most probable token at each position.

    A beam search with one hypothesis can return another output, because it also considers outputs that end
    in an EOS that was not the most probable token.

    Args:
      step, state, limits, batch_size, length_penalty, run_loop: See `beam_search`. W is 1.

    Returns:
      `Hypotheses` with N = 1. The score is computed as in a beam search.

    Raises:
      ValueError: See `beam_search`. Limits that do not force EOS are allowed, but phrases are not.
    """
    search_state.check_penalty(length_penalty, limits.max_length)
    outputs = _extend_independently(step, state, limits, batch_size, 1, lambda x, *_: largest(x), run_loop)
    return outputs._replace(
        scores=outputs.scores / search_state.length_penalty(outputs.lengths, length_penalty)
    )


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
    run_loop: Loop = run_together,
) -> Hypotheses:
    """Draws independent samples from the model.

    Args:
      step, state, limits, batch_size, run_loop: See `beam_search`. W is `samples`.
      rng: A key of `jax.random.key`, or such keys [B]. Sample w of row b depends on the key of the row and on
        w. If `rng` is a single key, the sample also depends on b. It never depends on the other rows of the
        batch.
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
        concern the state and the limits. Limits that do not force EOS are allowed, but phrases are not.
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

    def choose(logits, position, rows):
        sample_row = jax.vmap(sample_one, (None, 0, 0, None))
        return jax.vmap(sample_row, (0, None, 0, None))(keys[rows], jnp.arange(samples), logits, position)

    return _extend_independently(step, state, limits, batch_size, samples, choose, run_loop)


def _extend_independently(
    step: Step,
    state: State,
    limits: Limits,
    batch_size: int,
    width: int,
    choose: Callable[[jax.Array, jax.Array, jax.Array], jax.Array],
    run_loop: Loop,
) -> Hypotheses:
    """Extends W independent prefixes of each row until all of them have ended.

    Args:
      step, state, limits, batch_size, run_loop: See `beam_search`.
      width: Number of prefixes of a row, W.
      choose: Function that maps (logits [B, W, V], position, rows [B]) to the next tokens int [B, W]. The
        logits of tokens that are not allowed are -inf.

    Returns:
      `Hypotheses` with N = W. The scores are log-probabilities under the model.
    """
    if limits.constraints.phrases is not None:
        raise ValueError("Expected no constraints.phrases, because only beam search supports phrases.")
    check_state(state, batch_size, limits.max_length)
    all_limits = limits.for_batch(batch_size)

    def is_live(hypotheses):
        return (hypotheses.lengths == 0) & (hypotheses.scores > -jnp.inf)

    def advance(prefixes):
        rows, position, last, finished, state = prefixes
        limits = all_limits.take(rows)
        logits, state = step(last, state, position)
        limits.check_tokens(logits)
        logits = limits.penalize(logits, finished.tokens, position)
        allowed = limits.mask_repetition(logits, finished.tokens, position)
        allowed = limits.mask_logits(allowed, position).astype(jnp.float32)
        tokens = jnp.where(limits.must_end(position)[:, None], limits.eos_id, choose(allowed, position, rows))
        chosen_logit = jnp.take_along_axis(allowed, tokens[..., None], axis=-1)[..., 0]
        gained = log_probability(chosen_logit, log_z(logits))
        tokens = jnp.where(is_live(finished), tokens, 0).astype(jnp.int32)
        # Without `force_eos`, an output may also end without EOS.
        is_full = position + 1 >= limits.max_lengths[:, None]
        ends = is_live(finished) & ((tokens == limits.eos_id) | is_full)
        finished = Hypotheses(
            tokens=finished.tokens.at[:, :, position].set(tokens),
            scores=jnp.where(is_live(finished), finished.scores + gained, finished.scores),
            lengths=jnp.where(ends, position + 1, finished.lengths),
        )
        return _Prefixes(rows, position + 1, tokens, finished, state)

    empty = empty_hypotheses(batch_size, width, limits.max_length, score=0.0)
    last = limits.first_tokens(batch_size, width)
    start = _Prefixes(jnp.arange(batch_size), jnp.int32(0), last, empty, state)
    outputs = run_loop(lambda prefixes: is_live(prefixes.finished).any(-1), advance, start)
    exists = outputs.scores > -jnp.inf
    return Hypotheses(outputs.tokens * exists[..., None], outputs.scores, outputs.lengths * exists)


def _sample_token(key: jax.Array, logits: jax.Array, top_k: int, top_p: float) -> jax.Array:
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
