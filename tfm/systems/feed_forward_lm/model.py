"""The feed-forward language model of Bengio et al. 2003: a network that reads the last n - 1 words.

    y = b + W x + U tanh(d + H x),    x = the embeddings of the last n - 1 tokens

Shape letters as in `tfm.layers`. N = n - 1 is the number of tokens that the model reads.
"""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm import layers
from tfm.config import InheritsHelp, check_fields, field
from tfm.layers.block_config import fixed_field, name_field, rate_field, size_field
from tfm.layers.carry_cache import CarryCache
from tfm.layers.dense import dense
from tfm.layers.neighbours import gather_neighbours
from tfm.masks import PAD_ID


@dataclasses.dataclass(frozen=True)
class FeedForwardLMConfig(InheritsHelp):
    """The config of a feed-forward language model.

    The defaults are MLP9 of Table 1. The best model of the paper, MLP10, mixes MLP9 with trigrams.
    """

    name: str = name_field("feed_forward_lm")
    context: int = fixed_field(
        4, "Number of tokens that the model reads, n - 1.", minimum=1, maximum=1024, unit="tokens"
    )
    embedding_features: int = size_field(30, "Width of the embeddings, m.")
    hidden_features: int = size_field(100, "Width of the hidden layer, h.")
    direct: bool = fixed_field(False, "Direct connections from the embeddings to the logits, W.")
    dropout: float = rate_field(0.0, "Dropout rate of the embeddings and of the hidden layer.")
    dtype: str = field("float32", "Compute dtype. Parameters are float32.", choices=("float32", "bfloat16"))

    def __post_init__(self):
        check_fields(self, "model")

    @property
    def max_length(self) -> None:
        """Returns None, because the model reads the last tokens of a text of any length."""
        return None


class FeedForwardLM(nn.Module):
    """A feed-forward model that implements `tfm.decoding.protocol.LanguageModel`.

    Attributes:
      config: See `FeedForwardLMConfig`.
      vocabulary_size: Size of the vocabulary, V.
    """

    config: FeedForwardLMConfig
    vocabulary_size: int
    parameter_axes: ClassVar = {"output": ("vocabulary", None), "bias": ("vocabulary",)}

    def setup(self) -> None:
        config, dtype = self.config, jnp.dtype(self.config.dtype)
        self.embedding = layers.Embedding(self.vocabulary_size, config.embedding_features, dtype, scale=1.0)
        self.hidden = dense(config.hidden_features, dtype=dtype)
        self.dropout = layers.Dropout(config.dropout)
        direct = config.context * config.embedding_features if config.direct else 0
        shape = self.vocabulary_size, config.hidden_features + direct
        self.output = self.param("output", nn.initializers.glorot_uniform(), shape)  # U and W
        self.bias = self.param("bias", nn.initializers.zeros, shape[:1])

    def __call__(
        self,
        tokens: jax.Array,
        *,
        positions: jax.Array | None = None,
        segments: jax.Array | None = None,
        train: bool,
    ) -> jax.Array:
        """Returns the logits [B, L, V] of the token after each position. See `features`."""
        return self._logits(*self.features(tokens, positions=positions, segments=segments, train=train))

    def features(
        self,
        tokens: jax.Array,
        *,
        positions: jax.Array | None = None,
        segments: jax.Array | None = None,
        train: bool,
    ) -> tuple[jax.Array, jax.Array]:
        """Returns x [B, L, F] and the table [V, F], whose last column is the bias of the logits.

        Their product is the logits. For the arguments, see `tfm.models.decoder_lm.DecoderLM.features`.
        Positions are ignored, and tokens of other segments count as padding.
        """
        del positions
        segments = jnp.ones_like(tokens) if segments is None else segments
        window = gather_neighbours(tokens[..., None], segments, range(1 - self.config.context, 1))
        return self._read(window, train=train)

    def init_cache(self, context: jax.Array, *, width: int, max_length: int) -> CarryCache:
        """Returns a cache for W = `width` hypotheses that continue a context int [B, P], padded with 0.

        The carry is the last N - 1 tokens of each hypothesis.
        """
        del max_length  # the cache has the same size for hypotheses of any length
        empty = jnp.full((len(context), width, self.config.context - 1), PAD_ID)
        return self.prefill(context, CarryCache(empty))

    def prefill(self, tokens: jax.Array, cache: CarryCache) -> CarryCache:
        """Returns the cache with tokens int [B, P], padded at the end with 0, appended to its prefix."""
        added = jnp.broadcast_to(tokens[:, None], (*cache.carry.shape[:2], tokens.shape[1]))
        window = jnp.concatenate([cache.carry, added.astype(cache.carry.dtype)], axis=-1)
        count = (tokens != PAD_ID).sum(-1)[:, None, None]
        last = jnp.broadcast_to(count + jnp.arange(self.config.context - 1), cache.carry.shape)
        return cache.replace(carry=jnp.take_along_axis(window, last, axis=-1))

    def decode_step(
        self, tokens: jax.Array, cache: CarryCache, position: jax.Array
    ) -> tuple[jax.Array, CarryCache]:
        """Returns the logits [B, W, V] after the last tokens int [B, W], and the next cache."""
        del position
        window = jnp.concatenate([cache.carry, tokens[..., None].astype(cache.carry.dtype)], axis=-1)
        return self._logits(*self._read(window, train=False)), cache.replace(carry=window[..., 1:])

    def _read(self, window: jax.Array, *, train: bool) -> tuple[jax.Array, jax.Array]:
        """Returns the features [B, L, F] of windows of tokens int [B, L, N], and the table [V, F].

        A row of the table contains U, W and b of a token, one after the other.
        """
        # Padding has id 0 and a zero embedding, like positions before the start of a text.
        x = jnp.where((window != PAD_ID)[..., None], self.embedding(window), 0)
        x = self.dropout(x.reshape(*window.shape[:-1], -1), train=train)
        hidden = self.dropout(jnp.tanh(self.hidden(x)), train=train)
        ones = jnp.ones((*x.shape[:-1], 1), x.dtype)
        parts = [hidden, x, ones] if self.config.direct else [hidden, ones]
        return jnp.concatenate(parts, -1), jnp.concatenate([self.output, self.bias[:, None]], -1)

    def _logits(self, x: jax.Array, table: jax.Array) -> jax.Array:
        return x @ table.astype(x.dtype).T


Config = FeedForwardLMConfig
Model = FeedForwardLM
