"""A language model: a decoder without an encoder, such as GPT-2 (Radford et al. 2019).

The defaults describe GPT-2: pre-norm with a final norm, learned positions, the tanh approximation of gelu,
biases, and one matrix for the embedding and the logits. Matrices are initialized as in GPT (Radford et al.
2018, section 4.1), but output kernels are smaller (Radford et al. 2019, section 2.3). Shape letters as in
`tfm.layers`.
"""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from tfm import layers
from tfm.layers.block_config import SequenceConfig, fixed_field
from tfm.layers.kv_cache import DecodingCache
from tfm.masks import PAD_ID, AttentionMask

# Standard deviation of the initial values of all matrices (Radford et al. 2018, section 4.1).
INITIAL_DEVIATION = 0.02


@dataclasses.dataclass(frozen=True)
class DecoderLMConfig(SequenceConfig):
    """The config of a decoder without an encoder. The defaults describe the small model of GPT-2."""

    name: str = "decoder_lm"
    layers: int = fixed_field(12, "Number of layers, N.", minimum=1, maximum=1000, unit="layers")
    d_model: int = 768
    d_ff: int = 3072
    heads: int = 12
    attention_bias: bool = True
    activation: str = "gelu_tanh"
    norm_order: str = "pre"
    layer_norm_epsilon: float = 1e-5
    attention_dropout: float = 0.1
    positions: str = "learned"
    scale_embedding: bool = False
    tied_embeddings: bool = fixed_field(True, "One shared matrix for the embedding and the logits.")


class DecoderLM(layers.TransformerBase):
    """A Transformer language model that implements `tfm.decoding.protocol.LanguageModel`.

    To replace a submodule, override the method that creates it, as in `tfm.models.Transformer`.

    Attributes:
      config: See `DecoderLMConfig`.
      vocabulary_size: Size of the vocabulary, V.
    """

    config: DecoderLMConfig
    vocabulary_size: int
    attention_points: ClassVar[dict[str, str]] = {"decoder": "decoder.layers_*.self_attention.weights"}
    attention_tracks: ClassVar[dict[str, tuple[str, str]]] = {"decoder": ("predicted", "read")}

    def setup(self) -> None:
        config = self.config
        self.check_device()
        self.embedding = self.make_embedding()
        self.positions = self.decoder_positions = self.make_positions()
        self.decoder_embedding_norm = self.make_embedding_norm()
        self.dropout = layers.Dropout(config.dropout)
        self.decoder = self.make_stack(self.make_layer, config.layers)

    def make_initializers(self) -> tuple[Initializer, Initializer]:
        """Returns the normal initializers of kernels and of output kernels.

        The initial output kernels of all 2 N sublayers are divided by sqrt(2 N).
        """
        normal = nn.initializers.normal
        return normal(INITIAL_DEVIATION), normal(INITIAL_DEVIATION * (2 * self.config.layers) ** -0.5)

    def make_table_init(self) -> Initializer:
        """Returns a normal initializer with the same standard deviation as the kernels."""
        return nn.initializers.normal(INITIAL_DEVIATION)

    def make_embedding(self) -> nn.Module:
        """Returns the embedding of the tokens. It also computes the logits."""
        return self.make_token_embedding(tied=self.config.tied_embeddings)

    def make_layer(self, index: int) -> nn.Module:
        """Returns the layer with this index, counted from 0."""
        del index  # all layers are equal
        constants = layers.single_stack_constants(self.config.layers)
        return self.make_layer_with(constants, self.make_masked_self_attention())

    def __call__(
        self,
        tokens: jax.Array,
        *,
        positions: jax.Array | None = None,
        segments: jax.Array | None = None,
        train: bool,
    ) -> jax.Array:
        """Returns the logits [B, L, V] of the token after each position. See `features` for the arguments."""
        x, _ = self.features(tokens, positions=positions, segments=segments, train=train)
        return self.logits(x, positions)

    def features(
        self,
        tokens: jax.Array,
        *,
        positions: jax.Array | None = None,
        segments: jax.Array | None = None,
        train: bool,
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the output of the stack and the output table. Their product is the logits.

        Args:
          tokens: Input tokens, int [B, L].
          positions: Position of each token within its segment, int [B, L]. None means 0, 1, 2, ... A position
            after the end of a table of learned positions gives NaN.
          segments: Number of the text that each token belongs to, int [B, L], for rows that contain several
            texts. 0 is padding. If each row holds one text, pass booleans (True for tokens) or None.
          train: Whether dropout is on.

        Returns:
          x [B, L, D] in the compute dtype and the table [V, D]. The logits are x @ table.T. With
          `config.logits_bias`, both have one more column, see `Embedding.fused_inputs`.

        Raises:
          ValueError: If positions are None and L is above `config.max_length`.
        """
        mask = AttentionMask(segments, segments, causal=True)
        positions = self.positions_or_index(positions, tokens)
        (positions,) = self.shift_positions(positions, rows=len(tokens), train=train)
        norm = self.decoder_embedding_norm
        x = self.embedding(tokens)
        x = self.add_positions("decoder", x, self.positions, positions, norm=norm, train=train)
        x = self.decoder(x, mask=mask, positions=positions, train=train)
        return self.embedding.fused_inputs(x)

    def init_cache(self, context: jax.Array, *, width: int, max_length: int) -> DecodingCache:
        """Returns a cache for hypotheses that continue a context.

        Args:
          context: Tokens before the hypotheses of each row, int [B, P], padded at the end with 0. P may be 0.
          width: Number of hypotheses of a row, W.
          max_length: Maximum number of tokens of a hypothesis, T.

        Raises:
          ValueError: If P + T is above `config.max_length`.
        """
        batch, length = context.shape
        self.check_length(length + max_length)
        example = self.embedding(jnp.zeros((batch, 1), jnp.int32))
        cache = DecodingCache(
            layers=self.decoder.init_cache(example, width=width, max_length=max_length),
            ancestors=jnp.zeros((batch, width, max_length), jnp.int32),
            prefix_mask=jnp.zeros((batch, 0), bool),
        )
        return self.prefill(context, cache) if length else cache

    def prefill(self, tokens: jax.Array, cache: DecodingCache) -> DecodingCache:
        """Returns the cache with tokens int [B, P], padded at the end with 0, appended to its prefix.

        One pass serves all hypotheses of a row. None of them may have written to the cache.
        """
        cache, where = cache.append_prefix(tokens != PAD_ID)
        x = self.embedding(tokens)
        norm = self.decoder_embedding_norm
        x = self.add_positions("decoder", x, self.positions, where["positions"], norm=norm, train=False)
        return cache.replace(layers=self.decoder.prefill(x, cache.layers, **where))


Config = DecoderLMConfig
Model = DecoderLM
