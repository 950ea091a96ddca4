"""The result of a search: finished sequences with their scores."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Hypotheses(NamedTuple):
    """Finished sequences of each batch row.

    Attributes:
      tokens: int32 [B, N, T], up to and with EOS, then 0.
      scores: float32 [B, N]; -inf, with no tokens, where there is no (further) hypothesis.
      lengths: int32 [B, N], EOS counted.
    """

    tokens: jax.Array
    scores: jax.Array
    lengths: jax.Array


def empty_hypotheses(batch: int, count: int, max_length: int, score: float) -> Hypotheses:
    """`Hypotheses` [batch, count] without tokens."""
    return Hypotheses(
        tokens=jnp.zeros((batch, count, max_length), jnp.int32),
        scores=jnp.full((batch, count), score, jnp.float32),
        lengths=jnp.zeros((batch, count), jnp.int32),
    )
