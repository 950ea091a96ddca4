"""The result of a search: finished sequences with their scores."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Hypotheses(NamedTuple):
    """Finished sequences of each batch row.

    If a search finds fewer than N outputs for a row, the remaining hypotheses have the score -inf, the length
    0 and no tokens.

    Attributes:
      tokens: int32 [B, N, T]. The tokens of an output including EOS, followed by 0.
      scores: float32 [B, N]. NaN means that logits of the model were NaN.
      lengths: int32 [B, N]. The number of tokens including EOS.
    """

    tokens: jax.Array
    scores: jax.Array
    lengths: jax.Array


def empty_hypotheses(batch_size: int, count: int, max_length: int, score: float) -> Hypotheses:
    """Returns `Hypotheses` with N = `count` for each row, without tokens and all with the same score."""
    return Hypotheses(
        tokens=jnp.zeros((batch_size, count, max_length), jnp.int32),
        scores=jnp.full((batch_size, count), score, jnp.float32),
        lengths=jnp.zeros((batch_size, count), jnp.int32),
    )
