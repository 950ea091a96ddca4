"""Search for output sequences: greedy, beam and sampling, over an opaque decoding state.

The model is a function `step(tokens, state, position) -> (logits, state)`:

    tokens    int32 [B, W], the last token of each live hypothesis; `bos_id` at position 0
    state     any pytree whose leaves begin with the axis B; what the model carries along
    position  int32 scalar, counted from 0
    logits    [B, W, V]; -inf rules a token out

The hypotheses are the sequences that end in `eos_id` after at most `limits[b]` tokens, EOS counted. At the
last place that a limit leaves, EOS is the only choice, so every hypothesis returned is a finished one.

Shape letters: B batch, W live hypotheses of a sentence (the beam), N hypotheses returned, T `max_length`,
V vocabulary.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Hypotheses(NamedTuple):
    """Finished sequences, the best of each sentence first.

    Attributes:
      tokens: int32 [B, N, T], up to and with EOS, 0 behind it.
      scores: float32 [B, N]; -inf where there was no such hypothesis.
      lengths: int32 [B, N], EOS counted.
    """

    tokens: jax.Array
    scores: jax.Array
    lengths: jax.Array


class _Beam(NamedTuple):
    """What the loop of beam search carries: live prefixes, finished hypotheses, the model's state."""

    position: jax.Array
    live_tokens: jax.Array  # [B, W, T]
    live_scores: jax.Array  # [B, W] log-probabilities
    finished: Hypotheses
    state: object


def gnmt_penalty(length, alpha):
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
    n_best=1,
    reorder=gather_beams,
):
    """Beam search that stops as soon as no live hypothesis can win (section 6.1).

    Each step extends every live prefix by every token. The best `beam_size` extensions without EOS live on;
    those with EOS compete for the `beam_size` finished places by score. A sentence is done when the bound on
    all that could still come, its best live log-probability under the mildest penalty, does not exceed its
    n_best-th finished score.

    Args:
      step, state: the model, see the module's docstring.
      beam_size: W.
      length_penalty: alpha; a hypothesis' score is its log-probability / ((5 + length) / 6) ** alpha.
      max_length: T, static.
      bos_id, eos_id: of the vocabulary.
      limits: int32 [B], tokens that a sentence's output may have, EOS counted; `max_length` when None.
      n_best: N <= beam_size hypotheses to return.
      reorder: (state, parents int32 [B, W]) -> state, how the state follows its hypotheses. The default
        gathers leaves [B, W, ...]; a model whose hypotheses share a pool of positions has a cheaper one.

    Returns:
      `Hypotheses`.
    """
    alpha = length_penalty
    batch = jax.tree.leaves(state)[0].shape[0]
    limits = jnp.full((batch,), max_length) if limits is None else jnp.minimum(limits, max_length)

    def unfinished(beam):
        bound = beam.live_scores[:, 0] / gnmt_penalty(limits, alpha)
        done = beam.finished.scores[:, n_best - 1] >= bound
        return (beam.position < max_length) & ~done.all()

    def advance(beam):
        last = _last_tokens(beam.live_tokens, beam.position, bos_id)
        logits, state = step(last, beam.state, beam.position)
        scores = beam.live_scores[..., None] + _log_probabilities(logits, beam.position, limits, eos_id)
        finished = _finish(beam, scores[..., eos_id], alpha, eos_id)
        live_scores, parents, tokens = _extend(scores.at[..., eos_id].set(-jnp.inf))
        live_tokens = gather_beams(beam.live_tokens, parents).at[:, :, beam.position].set(tokens)
        return _Beam(beam.position + 1, live_tokens, live_scores, finished, reorder(state, parents))

    nothing = jnp.full((batch, beam_size), -jnp.inf)
    no_tokens = jnp.zeros((batch, beam_size, max_length), jnp.int32)
    beam = _Beam(
        position=jnp.zeros((), jnp.int32),
        live_tokens=no_tokens,
        live_scores=nothing.at[:, 0].set(0.0),  # one live prefix, the empty one
        finished=Hypotheses(no_tokens, nothing, jnp.zeros((batch, beam_size), jnp.int32)),
        state=state,
    )
    finished = jax.lax.while_loop(unfinished, advance, beam).finished
    return jax.tree.map(lambda x: x[:, :n_best], finished)


def greedy_search(step, state, *, max_length, bos_id, eos_id, limits=None):
    """The most probable token at each place: `Hypotheses` with N = 1, scored by log-probability."""

    def choose(log_probabilities, _):
        return log_probabilities.argmax(-1)

    return _follow(step, state, choose, 1, max_length, bos_id, eos_id, limits)


def sample(
    step,
    state,
    rng,
    *,
    samples,
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
      rng: a JAX random key. A sentence's samples depend on its row and the key, not on the rows beside it.
      temperature: divides the logits; positive.
      top_k: only the so many most probable tokens; 0 is all.
      top_p: only the most probable tokens whose probabilities first reach this sum (nucleus sampling).

    Returns:
      `Hypotheses`; the scores are log-probabilities under the model itself, before temperature and cuts.
    """
    if temperature <= 0:
        raise ValueError(
            f"temperature must be positive, got {temperature}; greedy_search takes the best token"
        )
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must be in (0, 1], got {top_p}")

    def choose(log_probabilities, position):
        batch, width, _ = log_probabilities.shape
        logits = _keep_top_p(_keep_top_k(log_probabilities / temperature, top_k), top_p)
        key = jax.random.fold_in(rng, position)
        keys = jax.vmap(lambda row: jax.random.split(jax.random.fold_in(key, row), width))(jnp.arange(batch))
        return jax.vmap(jax.vmap(jax.random.categorical))(keys, logits)

    return _follow(step, state, choose, samples, max_length, bos_id, eos_id, limits)


def token_scores(logits, targets):
    """Log-probability of given tokens: logits [..., L, V], targets int [..., L] -> float32 [..., L]."""
    log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32))
    return jnp.take_along_axis(log_probabilities, targets[..., None], axis=-1)[..., 0]


def _last_tokens(tokens, position, bos_id):
    """[B, W, T] -> [B, W], the token before `position`."""
    last = jax.lax.dynamic_index_in_dim(tokens, jnp.maximum(position - 1, 0), axis=2, keepdims=False)
    return jnp.where(position == 0, bos_id, last)


def _log_probabilities(logits, position, limits, eos_id):
    """float32 [B, W, V]; at the last place of a limit and behind it, everything but EOS is ruled out."""
    log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32))
    must_end = (position + 1 >= limits)[:, None, None]
    is_eos = jnp.arange(logits.shape[-1]) == eos_id
    return jnp.where(must_end & ~is_eos, -jnp.inf, log_probabilities)


def _finish(beam, eos_scores, alpha, eos_id):
    """The best finished hypotheses of those so far and of every live one ended here; eos_scores [B, W]."""
    length = beam.position + 1
    ended = Hypotheses(
        tokens=beam.live_tokens.at[:, :, beam.position].set(eos_id),
        scores=eos_scores / gnmt_penalty(length, alpha),
        lengths=jnp.full(eos_scores.shape, length),
    )
    both = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), beam.finished, ended)
    _, best = jax.lax.top_k(both.scores, eos_scores.shape[1])
    return gather_beams(both, best)


def _extend(scores):
    """The best W of the extensions, scores [B, W, V] -> their scores, parents and tokens, each [B, W]."""
    batch, width, classes = scores.shape
    best, index = jax.lax.top_k(scores.reshape(batch, width * classes), width)
    return best, index // classes, index % classes


def _follow(step, state, choose, width, max_length, bos_id, eos_id, limits):
    """Extends W independent prefixes by the token that `choose(log_probabilities, position)` picks."""
    batch = jax.tree.leaves(state)[0].shape[0]
    limits = jnp.full((batch,), max_length) if limits is None else jnp.minimum(limits, max_length)

    def unfinished(carry):
        position, _, found, _ = carry
        return (position < max_length) & (found.lengths == 0).any()

    def advance(carry):
        position, last, found, state = carry
        logits, state = step(last, state, position)
        log_probabilities = _log_probabilities(logits, position, limits, eos_id)
        tokens = choose(log_probabilities, position).astype(jnp.int32)
        gained = jnp.take_along_axis(log_probabilities, tokens[..., None], axis=-1)[..., 0]
        live = found.lengths == 0
        tokens = jnp.where(live, tokens, 0)
        found = Hypotheses(
            tokens=found.tokens.at[:, :, position].set(tokens),
            scores=found.scores + jnp.where(live, gained, 0.0),
            lengths=jnp.where(live & (tokens == eos_id), position + 1, found.lengths),
        )
        return position + 1, tokens, found, state

    empty = Hypotheses(
        tokens=jnp.zeros((batch, width, max_length), jnp.int32),
        scores=jnp.zeros((batch, width)),
        lengths=jnp.zeros((batch, width), jnp.int32),
    )
    last = jnp.full((batch, width), bos_id, jnp.int32)
    start = (jnp.zeros((), jnp.int32), last, empty, state)
    return jax.lax.while_loop(unfinished, advance, start)[2]


def _keep_top_k(logits, k):
    if k == 0 or k >= logits.shape[-1]:
        return logits
    threshold = jax.lax.top_k(logits, k)[0][..., -1:]
    return jnp.where(logits < threshold, -jnp.inf, logits)


def _keep_top_p(logits, p):
    """Rules out every token before which the more probable ones already sum to `p`."""
    if p == 1:
        return logits
    ordered = -jnp.sort(-logits, axis=-1)
    before = jnp.cumsum(jax.nn.softmax(ordered), axis=-1) - jax.nn.softmax(ordered)
    threshold = jnp.where(before < p, ordered, jnp.inf).min(-1, keepdims=True)
    return jnp.where(logits < threshold, -jnp.inf, logits)
