"""Token embeddings, tied to the output projection (section 3.4), and learned positions (Table 3, row E).

Shape letters as in `tfm.layers`.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from tfm.layers.parameter_axes import declare_axes
from tfm.matmul import dot_general


@declare_axes(
    {
        **{f"{name}/table": ("vocabulary", "model") for name in ("embedding", "source_embedding")},
        "embedding/output": ("vocabulary", "model"),
    }
)
class Embedding(nn.Module):
    """Token embedding whose matrix is also the pre-softmax projection, section 3.4.

    Attributes:
      vocabulary_size: V.
      features: D.
      dtype: compute dtype.
      scale: factor of the embeddings; sqrt(D) when None, as in the paper.
      table_init: initializer of the matrix; normal with deviation 1 / sqrt(D) when None.
      tied: False makes the projection a matrix of its own, initialized alike.
    """

    vocabulary_size: int
    features: int
    dtype: DTypeLike = jnp.float32
    scale: float | None = None
    table_init: Initializer | None = None
    tied: bool = True

    def setup(self) -> None:
        init = self.table_init or nn.initializers.normal(self.features**-0.5)
        shape = (self.vocabulary_size, self.features)
        self.table = self.param("table", init, shape)
        self.output_table = self.table if self.tied else self.param("output", init, shape)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """[...] -> [..., D], multiplied by `scale`."""
        scale = self.features**0.5 if self.scale is None else self.scale
        return jnp.take(self.table, tokens, axis=0).astype(self.dtype) * scale

    def logits(self, x: jax.Array) -> jax.Array:
        """[..., D] -> [..., V]."""
        x, table = x.astype(self.dtype), self.output_table.astype(self.dtype)
        # Above 64 rows, transposing the logits costs more than the better order saves.
        return dot_general(x, table, (((x.ndim - 1,), (1,)), ((), ())), max_skinny_rows=64)


@declare_axes(
    {f"{name}/table": ("positions", None) for name in ("positions", "encoder_positions", "decoder_positions")}
)
class LearnedPositions(nn.Module):
    """A learned vector for each position, in place of sinusoids (Table 3, row E).

    Attributes:
      max_length: T, positions.
      features: D.
      table_init: initializer; normal with deviation 1 / sqrt(D) when None.
    """

    max_length: int
    features: int
    table_init: Initializer | None = None

    @nn.compact
    def __call__(self, positions: jax.Array) -> jax.Array:
        """Integers [...] -> [..., D]; a position beyond the table gives NaN, not another position's row."""
        init = self.table_init or nn.initializers.normal(self.features**-0.5)
        table = self.param("table", init, (self.max_length, self.features))
        return jnp.take(table, positions, axis=0, mode="fill")
