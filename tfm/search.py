"""Search for output sequences: greedy, beam and sampling, over an opaque decoding state.

The model is a function `step(tokens, state, position) -> (logits, state)`:

    tokens    int32 [B, W], the last token of each live hypothesis; `bos_id` at position 0
    state     any pytree whose leaves begin with the axis B; what the model carries along
    position  int32 scalar, counted from 0
    logits    [B, W, V], any float dtype; -inf rules a token out

The hypotheses are the sequences that end in `eos_id` after at most `limits[b]` tokens, EOS counted. At the
last place that a limit leaves, EOS is the only choice, so every hypothesis returned is a finished one.
Outputs are padded with 0. The search itself forbids no token: a step that must never emit padding or BOS
gives them a logit of -inf.

Shape letters: B batch, W live hypotheses of a sentence (the beam), N hypotheses returned, T `max_length`,
L target length, V vocabulary.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Hypotheses(NamedTuple):
    """Finished sequences of each sentence.

    Attributes:
      tokens: int32 [B, N, T], up to and with EOS, 0 behind it.
      scores: float32 [B, N]; -inf, with no tokens, where the model allows no (further) hypothesis.
      lengths: int32 [B, N], EOS counted.
    """

    tokens: jax.Array
    scores: jax.Array
    lengths: jax.Array


class _Beam(NamedTuple):
    """What the loop of beam search carries; a live score of -inf marks a hypothesis that is given up."""

    position: jax.Array  # of the next token, so the length of the live hypotheses
    last: jax.Array  # [B, W]
    live_tokens: jax.Array  # [B, W, T]
    live_scores: jax.Array  # [B, W] log-probabilities
    finished: Hypotheses
    state: object


def length_penalty(length, alpha):
    """((5 + length) / 6) ** alpha: Wu et al. 2016, equation 14, as section 6.1 uses it with alpha 0.6."""
    return ((5.0 + length) / 6.0) ** alpha


def gather_beams(tree, parents):
    """Leaves [B, W, ...] -> [B, W', ...]: hypothesis w continues `parents[b, w]`, int32 [B, W']."""

    def gather(leaf):
        return jnp.take_along_axis(leaf, parents.reshape(*parents.shape, *[1] * (leaf.ndim - 2)), axis=1)

    return jax.tree.map(gather, tree)


def beam_search(
    step,
    state,
    *,
    beam_size,
    length_penalty,
    max_length,
    bos_id,
    eos_id,
    limits=None,
    n_best=None,
    reorder=gather_beams,
):
    """Beam search that stops as soon as no live hypothesis can win (section 6.1).

    Each step extends every live prefix by every token. The best `beam_size` extensions without EOS live on;
    those with EOS compete for the `n_best` finished places by score. A live hypothesis is given up when even
    its own log-probability, under the mildest penalty still to come, would not win one of these places: it
    can only fall. The search ends when every live hypothesis is given up or at its limit.

    Args:
      step, state: the model, see the module's docstring.
      beam_size: W.
      length_penalty: alpha; a hypothesis' score is its log-probability / ((5 + length) / 6) ** alpha.
      max_length: T, static.
      bos_id, eos_id: of the vocabulary.
      limits: int32 [B], at least 1: tokens that a sentence's output may have; `max_length` when None.
      n_best: N <= W hypotheses to find, W when None. Fewer end the search earlier.
      reorder: (state, parents int32 [B, W]) -> state, how the state follows its hypotheses. The default
        gathers leaves [B, W, ...]; a model whose hypotheses share a pool of positions has a cheaper one.

    Returns:
      `Hypotheses`, the best of each sentence first.

    Raises:
      ValueError: unless 1 <= n_best <= beam_size.
    """
    n_best = beam_size if n_best is None else n_best
    if not 1 <= n_best <= beam_size:
        raise ValueError(f"expected 1 <= n_best <= beam_size, got n_best {n_best}, beam_size {beam_size}")
    batch, limits = _batch_and_limits(state, limits, max_length)

    def unfinished(beam):
        return (beam.live_scores > -jnp.inf).any()

    def advance(beam):
        logits, state = step(beam.last, beam.state, beam.position)
        finished = _finish(beam, logits, eos_id, length_penalty, n_best)
        live_scores, parents, tokens = _extend(beam.live_scores, logits, eos_id)
        live_tokens = gather_beams(beam.live_tokens, parents).at[:, :, beam.position].set(tokens)
        length = beam.position + 1
        can_win = _bound(live_scores, length, limits[:, None], length_penalty) > finished.scores[:, -1:]
        live_scores = jnp.where(can_win & (length < limits)[:, None], live_scores, -jnp.inf)
        return _Beam(length, tokens, live_tokens, live_scores, finished, reorder(state, parents))

    start = _Beam(
        position=jnp.int32(0),
        last=jnp.full((batch, beam_size), bos_id, jnp.int32),
        live_tokens=jnp.zeros((batch, beam_size, max_length), jnp.int32),
        # One live prefix, the empty one.
        live_scores=jnp.full((batch, beam_size), -jnp.inf, jnp.float32).at[:, 0].set(0.0),
        finished=_no_hypotheses(batch, n_best, max_length, score=-jnp.inf),
        state=state,
    )
    return jax.lax.while_loop(unfinished, advance, start).finished


def greedy_search(step, state, *, max_length, bos_id, eos_id, limits=None):
    """The most probable token at each place: `Hypotheses` with N = 1, scored by log-probability.

    The arguments are those of `beam_search`, with W = 1. A beam of size 1 is something else: it also weighs
    an EOS that was not the most probable token.
    """
    return _follow(step, state, lambda logits, _: logits.argmax(-1), 1, max_length, bos_id, eos_id, limits)


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
    limits=None,
):
    """Independent samples from the model: `Hypotheses` with N = `samples`, in no order.

    Args:
      step, state, max_length, bos_id, eos_id, limits: as in `beam_search`; W = `samples`.
      rng: a JAX random key. Sample w of row b depends on the key, b and w, not on the rows beside it.
      samples: N.
      temperature: divides the logits; positive, static.
      top_k: draws only from the so many most probable tokens; 0 is all.
      top_p: draws only from the fewest most probable tokens whose probabilities reach this sum (nucleus
        sampling, Holtzman et al. 2020), counted after temperature and `top_k`.

    Returns:
      `Hypotheses`; the scores are log-probabilities under the model itself, before temperature and cuts.

    Raises:
      ValueError: a temperature, top_k or top_p out of range.
    """
    if temperature <= 0 or top_k < 0 or not 0 < top_p <= 1:
        expected = "temperature > 0 (for 0 use greedy_search), top_k >= 0 and 0 < top_p <= 1"
        raise ValueError(f"expected {expected}, got {temperature}, {top_k} and {top_p}")

    def draw(row, number, logits, position):
        key = functools.reduce(jax.random.fold_in, (row, number, position), rng)
        return _draw(key, logits / temperature, top_k, top_p)

    def choose(logits, position):
        rows, numbers = jnp.indices(logits.shape[:2])
        return jax.vmap(jax.vmap(draw, (0, 0, 0, None)), (0, 0, 0, None))(rows, numbers, logits, position)

    return _follow(step, state, choose, samples, max_length, bos_id, eos_id, limits)


def token_scores(logits, targets):
    """Log-probability of given tokens: logits [..., L, V], targets int [..., L] -> float32 [..., L]."""
    return _log_probability(jnp.take_along_axis(logits, targets[..., None], axis=-1), logits)[..., 0]


def score(logits, targets, weights):
    """Log-probability of given sequences.

    Args:
      logits: [..., L, V], of a forward pass over the whole targets.
      targets: int [..., L].
      weights: [..., L]; 0 where the target is padding, which then costs nothing, whatever its logit.

    Returns:
      (sums float32 [...], weighted log-probabilities float32 [..., L]).
    """
    tokens = jnp.where(weights == 0, 0.0, token_scores(logits, targets) * weights)
    return tokens.sum(-1), tokens


def _batch_and_limits(state, limits, max_length):
    batch = jax.tree.leaves(state)[0].shape[0]
    limits = max_length if limits is None else jnp.minimum(limits, max_length)
    return batch, jnp.broadcast_to(limits, (batch,)).astype(jnp.int32)


def _no_hypotheses(batch, width, max_length, score):
    return Hypotheses(
        tokens=jnp.zeros((batch, width, max_length), jnp.int32),
        scores=jnp.full((batch, width), score, jnp.float32),
        lengths=jnp.zeros((batch, width), jnp.int32),
    )


def _log_probability(chosen, logits):
    """Log-probabilities of some logits [..., K] among all, [..., V]; -inf stays so, even if all are -inf."""
    chosen, logits = chosen.astype(jnp.float32), logits.astype(jnp.float32)
    normalizer = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    return jnp.where(chosen == -jnp.inf, -jnp.inf, chosen - normalizer)


def _bound(live_scores, length, limits, alpha):
    """The best score that prefixes of `length` tokens can still reach."""
    # The sign of alpha decides at which end, the next token or the limit, the penalty is mildest.
    return live_scores / jnp.maximum(length_penalty(length + 1, alpha), length_penalty(limits, alpha))


def _finish(beam, logits, eos_id, alpha, n_best):
    """The best finished hypotheses among those so far and every live one ended here."""
    length = beam.position + 1
    eos_scores = beam.live_scores + _log_probability(logits[..., eos_id : eos_id + 1], logits)[..., 0]
    ended = Hypotheses(
        tokens=beam.live_tokens.at[:, :, beam.position].set(eos_id),
        scores=eos_scores / length_penalty(length, alpha),
        lengths=jnp.full(eos_scores.shape, length),
    )
    both = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), beam.finished, ended)
    _, best = jax.lax.top_k(both.scores, n_best)  # of equals the first: no live one at -inf ever enters
    return gather_beams(both, best)


def _extend(live_scores, logits, eos_id):
    """The best W extensions without EOS, of [B, W] and [B, W, V]: their scores, parents, tokens, [B, W]."""
    batch, width = live_scores.shape
    # Of one prefix no more than W tokens and EOS can matter; a top_k over all W * V is slower.
    kept = min(width + 1, logits.shape[-1])
    values, tokens = jax.lax.top_k(logits, kept)
    scores = live_scores[..., None] + _log_probability(values, logits)
    scores = jnp.where(tokens == eos_id, -jnp.inf, scores)
    best, index = jax.lax.top_k(scores.reshape(batch, width * kept), width)
    return best, index // kept, jnp.take_along_axis(tokens.reshape(batch, width * kept), index, axis=1)


def _follow(step, state, choose, width, max_length, bos_id, eos_id, limits):
    """Extends W independent prefixes by the tokens [B, W] that `choose(logits, position)` picks."""
    batch, limits = _batch_and_limits(state, limits, max_length)

    def live(found):
        return (found.lengths == 0) & (found.scores > -jnp.inf)

    def advance(carry):
        position, last, found, state = carry
        logits, state = step(last, state, position)
        must_end = (position + 1 >= limits)[:, None]
        tokens = jnp.where(must_end, eos_id, choose(logits.astype(jnp.float32), position))
        gained = token_scores(logits, tokens)
        tokens = jnp.where(live(found), tokens, 0).astype(jnp.int32)
        found = Hypotheses(
            tokens=found.tokens.at[:, :, position].set(tokens),
            scores=jnp.where(live(found), found.scores + gained, found.scores),
            lengths=jnp.where(live(found) & (tokens == eos_id), position + 1, found.lengths),
        )
        return position + 1, tokens, found, state

    nothing = _no_hypotheses(batch, width, max_length, score=0.0)
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
