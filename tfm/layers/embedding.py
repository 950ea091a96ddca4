"""Token embeddings that share a matrix with the logits (section 3.4), and learned positions (Table 3, row E).

Shape letters as in `tfm.layers`.
"""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from tfm.devices.matmul import dot_general


class Embedding(nn.Module):
    """A token embedding whose matrix also projects features to logits (section 3.4).

    Attributes:
      vocabulary_size: Size of the vocabulary, V.
      features: Width of an embedding, D.
      dtype: Compute dtype.
      scale: Factor of the embeddings. None means sqrt(D), as in the paper.
      table_init: Initializer of the matrix. None means normal with standard deviation 1 / sqrt(D).
      tied: Whether embeddings and logits share one matrix. Otherwise there is a second matrix for the logits,
        with the same initializer.
      use_bias: Whether the logits have a bias, as in BERT. The paper has none.
      bias_init: Initializer of the bias.
    """

    vocabulary_size: int
    features: int
    dtype: DTypeLike = jnp.float32
    scale: float | None = None
    table_init: Initializer | None = None
    tied: bool = True
    use_bias: bool = False
    bias_init: Initializer = nn.initializers.zeros
    parameter_axes: ClassVar = {"table": ("vocabulary", "model"), "output": ("vocabulary", "model")}

    def setup(self) -> None:
        init = self.table_init or nn.initializers.normal(self.features**-0.5)
        shape = (self.vocabulary_size, self.features)
        self.table = self.param("table", init, shape)
        self.output_table = self.table if self.tied else self.param("output", init, shape)
        if self.use_bias:
            self.bias = self.param("bias", self.bias_init, (self.vocabulary_size,))

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Returns the embeddings [..., D] of tokens int [...], multiplied by `scale`.

        A token of V or more gives NaN.
        """
        scale = self.features**0.5 if self.scale is None else self.scale
        return jnp.take(self.table, tokens, axis=0).astype(self.dtype) * scale

    def logits(self, x: jax.Array) -> jax.Array:
        """Projects [..., D] to logits [..., V]."""
        x, table = x.astype(self.dtype), self.output_table.astype(self.dtype)
        # With more than 64 rows, transposing the logits costs more time than the order for few rows saves.
        logits = dot_general(x, table, (((x.ndim - 1,), (1,)), ((), ())), max_skinny_rows=64)
        return logits + self.bias.astype(self.dtype) if self.use_bias else logits

    def fused_inputs(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns features and a table for a fused loss, such that features @ table.T equals `logits(x)`.

        With a bias, both get one more column: ones in the features, and the bias in the table.

        Args:
          x: [..., D].

        Returns:
          Features [..., D] and table [V, D], or [..., D + 1] and [V, D + 1] with a bias.
        """
        if not self.use_bias:
            return x, self.output_table
        ones = jnp.ones((*x.shape[:-1], 1), x.dtype)
        return jnp.concatenate([x, ones], -1), jnp.concatenate([self.output_table, self.bias[:, None]], -1)


class LearnedPositions(nn.Module):
    """A table with a learned vector for each position, in place of sinusoids (Table 3, row E).

    Attributes:
      max_length: Number of positions, T.
      features: Width of a vector, D.
      table_init: Initializer of the table. None means normal with standard deviation 1 / sqrt(D).
    """

    max_length: int
    features: int
    table_init: Initializer | None = None

    @nn.compact
    def __call__(self, positions: jax.Array) -> jax.Array:
        """Returns the vectors [..., D] of positions int [...].

        A position of T or more gives NaN. Negative positions count from the end of the table.
        """
        init = self.table_init or nn.initializers.normal(self.features**-0.5)
        table = self.param("table", init, (self.max_length, self.features))
        return jnp.take(table, positions, axis=0, mode="fill")
