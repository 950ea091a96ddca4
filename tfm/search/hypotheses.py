"""The result of a search: finished sequences with their scores."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Hypotheses(NamedTuple):
    """Finished sequences of each batch row.

    Attributes:
      tokens: int32 [B, N, T], up to and including EOS, then 0.
      scores: float32 [B, N]. A row with fewer than N outputs has -inf for the rest, without tokens. NaN means
        that logits were NaN.
      lengths: int32 [B, N], including EOS.
    """

    tokens: jax.Array
    scores: jax.Array
    lengths: jax.Array


def empty_hypotheses(batch_size: int, count: int, max_length: int, score: float) -> Hypotheses:
    """Returns `Hypotheses` [B, N] without tokens, all with the same score."""
    return Hypotheses(
        tokens=jnp.zeros((batch_size, count, max_length), jnp.int32),
        scores=jnp.full((batch_size, count), score, jnp.float32),
        lengths=jnp.zeros((batch_size, count), jnp.int32),
    )
