"""Phrases that an output must contain, by dynamic beam allocation (Post and Vilar 2018).

Shape letters: P phrases of a row, L tokens of a phrase, N prefixes or candidates. Phrases are int32
[B, P, L], padded with -1. A phrase without tokens is always complete.
"""

import jax
import jax.numpy as jnp


def count_met(tokens: jax.Array, length: jax.Array, phrases: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns how much of each phrase prefixes contain.

    Args:
      tokens: int32 [B, N, T]. The first `length` tokens are valid.
      length: Number of valid tokens.
      phrases: int32 [B, P, L].

    Returns:
      The number of met tokens of each phrase, int32 [B, N, P], and whether the phrase is complete, bool
      [B, N, P]. A phrase is complete if the prefix contains it anywhere. All its tokens are met then.
      Otherwise the number is the largest n for which the prefix ends in the first n tokens of the phrase.
    """
    size = phrases.shape[-1]
    padding = [(0, 0)] * (tokens.ndim - 1)
    after = jnp.pad(tokens, [*padding, (0, size)])[:, :, None]  # [B, N, 1, T + L]
    before = jnp.pad(tokens, [*padding, (size, 0)])
    last = jax.lax.dynamic_slice_in_dim(before, length, size, axis=-1)[:, :, None]  # [B, N, 1, L]
    wanted = phrases[:, None, :, :, None]  # [B, 1, P, L, 1]
    lengths = (phrases >= 0).sum(-1)[:, None]  # [B, 1, P]
    starts = jnp.arange(tokens.shape[-1])
    occurs = starts + lengths[..., None] <= length  # [B, 1, P, T]
    for i in range(size):
        occurs &= (wanted[..., i, :] < 0) | (after[..., i : i + len(starts)] == wanted[..., i, :])
    complete = occurs.any(-1) | (lengths == 0)
    met = jnp.zeros(complete.shape, jnp.int32)
    for count in range(1, size):
        begins = (last[..., size - count :] == phrases[:, None, :, :count]).all(-1) & (count < lengths)
        met = jnp.where(begins & (count <= length), count, met)
    return jnp.where(complete, lengths, met), complete


def may_end_with(
    tokens: jax.Array, length: jax.Array, phrases: jax.Array, must_end: jax.Array, has_finished: jax.Array
) -> jax.Array:
    """Returns bool [B, W], True for prefixes that EOS may follow.

    These prefixes contain all phrases. If a row has to end without such an output, every prefix may end.

    Args:
      tokens, length, phrases: See `count_met`.
      must_end: bool [B], whether only EOS is allowed.
      has_finished: bool [B], whether the row has a finished hypothesis.
    """
    complete = count_met(tokens, length, phrases)[1].all(-1)
    gives_up = must_end & ~has_finished & ~complete.any(-1)
    return complete | gives_up[:, None]


def add_phrase_tokens(
    met: jax.Array, complete: jax.Array, phrases: jax.Array, tokens: jax.Array
) -> jax.Array:
    """Returns the next token of each phrase of a prefix, int32 [B, W, P].

    It is -1 if the phrase is complete, or if its next token is a candidate already, also as the next token of
    an earlier phrase.

    Args:
      met, complete, phrases: See `count_met`.
      tokens: int32 [B, W, K], the other candidates.
    """
    index = jnp.minimum(met, phrases.shape[-1] - 1)[..., None]
    wanted = jnp.take_along_axis(phrases[:, None], index, axis=-1)[..., 0]
    repeated = (wanted[..., None] == tokens[:, :, None]).any(-1)
    same = (wanted[..., :, None] == wanted[..., None, :]) & ~complete[..., None, :]
    repeated |= (same & jnp.tri(phrases.shape[1], k=-1, dtype=bool)).any(-1)
    return jnp.where(complete | repeated, -1, wanted)


def choose_from_banks(scores: jax.Array, met: jax.Array, width: int) -> jax.Array:
    """Returns int32 [B, W], the indices of the candidates that stay in the beam.

    The candidates with equal numbers of met tokens are a bank. The best of each bank come first, then the
    second best of each bank, and so on, so that no bank starves. In each round, banks with more met tokens
    come first. Candidates that do not exist come last.

    Args:
      scores: float32 [B, N]; -inf for a candidate that does not exist.
      met: int32 [B, N].
      width: Number of candidates that stay, W.
    """
    order = jnp.arange(scores.shape[-1])
    above, below = scores[:, None], scores[:, :, None]
    is_better = (above > below) | ((above == below) & (order < order[:, None]))
    rank = (is_better & (met[:, None] == met[:, :, None])).sum(-1)
    turn = rank * (met.max(-1, keepdims=True) + 1) - met
    return jax.lax.top_k(jnp.where(scores > -jnp.inf, -turn, -jnp.iinfo(jnp.int32).max), width)[1]
