"""Attention of a recurrent decoder, with a score function.

Shape letters as in `tfm.layers`. A is the width of an annotation, and F is the width of a state.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from tfm.attention import masked_softmax
from tfm.systems.lstm_lm.cells import Initializers

SCORES = ("additive", "general", "dot")


class ScoredAttention(nn.Module):
    """Attention of a decoder state to the annotations of the source, by a score function.

    It has one head and no projection of the values. The score functions of a query q and an annotation a are:

        additive   v^T tanh(W q + U a)   Bahdanau et al. 2015, appendix A.1.2 ("concat" in Luong et al. 2015)
        general    q^T W a               Luong et al. 2015, equation 8
        dot        q^T a

    Attributes:
      score: One of `SCORES`.
      query_features: Width of the state, F.
      features: Width of the hidden layer of the additive score.
      initializers: `attention` initializes the kernels and `score` initializes v.
      dtype: Compute dtype. The softmax is float32.
    """

    score: str
    query_features: int
    features: int
    initializers: Initializers
    dtype: DTypeLike = jnp.float32

    def setup(self) -> None:
        if self.score == "additive":
            self.query, self.key = self._projection(self.features), self._projection(self.features)
            self.vector = self.param("vector", self.initializers.score, (self.features, 1))
        elif self.score == "general":
            self.key = self._projection(self.query_features)

    def _projection(self, features: int) -> nn.Module:
        """Returns a projection to the given number of features."""
        return nn.Dense(features, use_bias=False, kernel_init=self.initializers.attention, dtype=self.dtype)

    def keys(self, annotations: jax.Array) -> jax.Array:
        """Returns the keys [B, M, K] of annotations [B, M, A]. They are computed only once per source."""
        return annotations if self.score == "dot" else self.key(annotations)

    def __call__(
        self, query: jax.Array, keys: jax.Array, annotations: jax.Array, mask: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Computes the attention of queries to annotations.

        Args:
          query: States, [B, W, F].
          keys: The result of `keys`, [B, M, K].
          annotations: [B, M, A].
          mask: bool [B, 1 or W, M], True where a query may attend.

        Returns:
          Contexts [B, W, A] (weighted sums of the annotations), and the weights [B, W, M].
        """
        weights = masked_softmax(self._logits(query, keys).astype(jnp.float32), mask)
        weights = weights.astype(annotations.dtype)
        return jnp.einsum("bwm,bma->bwa", weights, annotations), weights

    def _logits(self, query: jax.Array, keys: jax.Array) -> jax.Array:
        """Returns the scores [B, W, M] of queries [B, W, F] and keys [B, M, K]."""
        if self.score != "additive":
            return jnp.einsum("bwk,bmk->bwm", query, keys)
        hidden = jnp.tanh(self.query(query)[:, :, None] + keys[:, None])
        return jnp.einsum("bwmk,k->bwm", hidden, self.vector[:, 0].astype(self.dtype))
