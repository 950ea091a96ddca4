"""word2vec: the skip-gram model with negative sampling (Mikolov et al. 2013).

Each word has two vectors, one as a center and one as a context. Their product is the logit of the probability
that the pair is from the text and not from noise. Shape letters as in `tfm.layers`.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.config import InheritsHelp, check_fields
from tfm.layers.block_config import name_field, size_field


@dataclasses.dataclass(frozen=True)
class Word2VecConfig(InheritsHelp):
    """The config of word2vec. The default is the width in the paper; word2vec.c has 100."""

    name: str = name_field("word2vec")
    features: int = size_field(300, "Width of a vector, D.")

    def __post_init__(self):
        check_fields(self, "model")

    @property
    def max_length(self) -> None:
        """Returns None, because the model reads single words."""
        return None


class Word2Vec(nn.Module):
    """The vectors of all words.

    Attributes:
      config: See `Word2VecConfig`.
      vocabulary_size: Number of words, V.
    """

    config: Word2VecConfig
    vocabulary_size: int

    @nn.compact
    def __call__(self, centers: jax.Array, contexts: jax.Array, *, train: bool) -> jax.Array:
        """Returns the logits [B, N] of N contexts of each center.

        Args:
          centers: int [B].
          contexts: int [B, N].
          train: Ignored, because nothing differs in training.
        """
        del train
        features = self.config.features
        shape = self.vocabulary_size, features

        def draw(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
            """Draws the initial vectors like the authors' code, uniformly from -0.5 / D to 0.5 / D."""
            return jax.random.uniform(key, shape, jnp.float32, -0.5 / features, 0.5 / features)

        vectors = self.param("centers", draw, shape)
        context_vectors = self.param("contexts", nn.initializers.zeros, shape)
        return jnp.einsum("bd,bnd->bn", vectors[centers], context_vectors[contexts])


Config = Word2VecConfig
Model = Word2Vec
