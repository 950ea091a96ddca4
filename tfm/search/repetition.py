"""Less repetition in outputs: a penalty on tokens that an output has, and n-grams that may not repeat."""

import jax
import jax.numpy as jnp


def penalize_repetition(
    logits: jax.Array, tokens: jax.Array, position: jax.Array, penalty: float
) -> jax.Array:
    """Lowers the logits of the tokens that an output already has (Keskar et al. 2019, section 4.1).

    Positive logits are divided by the penalty, and negative logits are multiplied by it.

    Args:
      logits: float [B, W, V].
      tokens: int32 [B, W, T], the outputs so far.
      position: Number of tokens of the outputs so far.
      penalty: At least 1. 1 changes nothing.
    """
    is_token = jnp.broadcast_to(jnp.arange(tokens.shape[-1]) < position, tokens.shape)
    lowered = jnp.where(logits > 0, logits / penalty, logits * penalty)
    return jnp.where(_mark(tokens, is_token, logits.shape[-1]), lowered, logits)


def find_repeating_tokens(tokens: jax.Array, position: jax.Array, n: int, vocabulary: int) -> jax.Array:
    """Returns bool [B, W, V], True for each token that would end an n-gram that the output already has.

    Args:
      tokens, position: See `penalize_repetition`.
      n: Length of the n-grams, at least 1. Must be static.
      vocabulary: Size of the vocabulary, V.
    """
    count = tokens.shape[-1] - n + 1  # places where an n-gram may begin
    if count < 1:
        return jnp.zeros((*tokens.shape[:-1], vocabulary), bool)
    last = jax.lax.dynamic_slice_in_dim(tokens, jnp.maximum(position - n + 1, 0), max(n - 1, 1), axis=-1)
    is_repeated = jnp.broadcast_to(jnp.arange(count) + n - 1 < position, (*tokens.shape[:-1], count))
    for i in range(n - 1):
        is_repeated &= tokens[..., i : i + count] == last[..., i, None]
    return _mark(tokens[..., n - 1 :], is_repeated, vocabulary)


def _mark(tokens: jax.Array, chosen: jax.Array, vocabulary: int) -> jax.Array:
    """Returns bool [B, W, V], True for the tokens [B, W, T] that are chosen, bool [B, W, T]."""
    rows, beams = jnp.indices(tokens.shape[:2], sparse=True)
    marked = jnp.zeros((*tokens.shape[:2], vocabulary), bool)
    return marked.at[rows[..., None], beams[..., None], tokens].max(chosen)
