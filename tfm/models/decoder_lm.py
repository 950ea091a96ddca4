"""A decoder without an encoder: GPT-2 (Radford et al. 2019), a language model.

By default the structure and the initialization of GPT-2: pre-norm with a final norm, learned positions, gelu
in its tanh form, biases, and one matrix for embedding and logits. Sinusoids and post-norm are fields.
"""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from tfm import layers
from tfm.fields import NEVER, check_fields, field, field_like
from tfm.layers import activations
from tfm.layers.kv_cache import PrefixCache
from tfm.masks import causal_mask, segment_mask
from tfm.memory_estimate import DecoderMemory
from tfm.models.transformer import PAD_ID, TransformerConfig, check_sizes

INITIAL_DEVIATION = 0.02  # of all matrices, section 2.3 of Radford et al. 2018
fixed_field = functools.partial(field, resume=NEVER, warm_start=False)
same_field = functools.partial(field_like, TransformerConfig)


@dataclasses.dataclass(frozen=True)
class DecoderLMConfig:
    """GPT-2's small model; each default is GPT-2's, each deviation a field."""

    name: str = fixed_field("decoder_lm", "A module of tfm.models.")
    layers: int = fixed_field(12, "N, of the stack.", least=1, most=1000, unit="layers")
    d_model: int = same_field("d_model", 768)
    d_ff: int = same_field("d_ff", 3072)
    heads: int = same_field("heads", 12)
    key_features: int | None = same_field("key_features")
    value_features: int | None = same_field("value_features")
    key_value_heads: int | None = same_field("key_value_heads")
    scale_attention: bool = same_field("scale_attention")
    attention_window: int | None = same_field("attention_window")
    attention_bias: bool = same_field("attention_bias", True)
    activation: str = same_field("activation", "gelu_tanh")
    gated: bool = same_field("gated")
    norm: str = same_field("norm")
    norm_order: str = same_field("norm_order", "pre")
    deep_norm: bool = same_field("deep_norm")
    layer_norm_epsilon: float = same_field("layer_norm_epsilon", 1e-5)
    scale_embedding: bool = fixed_field(
        False, "Multiplies embeddings by sqrt(D), as the paper does; suits sinusoids, which are not small."
    )
    dropout: float = same_field("dropout", 0.1)
    attention_dropout: float = same_field("attention_dropout", 0.1)
    feed_forward_dropout: float = same_field("feed_forward_dropout", 0.0)
    positions: str = same_field("positions", "learned")
    max_positions: int = same_field("max_positions", 1024)
    tied_embeddings: bool = fixed_field(True, "One matrix for tokens and logits.")
    attention: str | None = same_field("attention")
    remat: bool = same_field("remat")
    scan: bool = same_field("scan")
    dtype: str = same_field("dtype")

    def __post_init__(self):
        check_fields(self, "model")
        check_sizes(self)

    @property
    def max_length(self) -> int | None:
        """The maximum number of tokens of a sequence, where positions are learned; None for no limit."""
        return self.max_positions if self.positions == "learned" else None


class DecoderLM(layers.TransformerParts):
    """Language model: the probability of each token given those before it. See `DecoderLMConfig`.

    A subclass replaces a part by overriding the method that makes it, as for `tfm.models.Transformer`.

    Attributes:
      config: the choices.
      vocabulary_size: V, of the one matrix that embeds tokens and makes the logits.
    """

    config: DecoderLMConfig
    vocabulary_size: int

    @property
    def memory_estimate(self) -> DecoderMemory:
        """Its bytes, by arithmetic."""
        return DecoderMemory(self.config, self.vocabulary_size)

    def setup(self) -> None:
        config = self.config
        self._check_device()
        self.embedding = self.make_embedding()
        self.positions = self.make_positions()
        self.dropout = layers.Dropout(config.dropout)
        self.decoder = self.make_stack(self.make_layer, config.layers)

    def make_initializers(self) -> tuple[Initializer, Initializer]:
        """Normal; the output of each of the 2 N sublayers, that a sum takes up, is smaller by sqrt(2 N)."""
        normal = nn.initializers.normal
        return normal(INITIAL_DEVIATION), normal(INITIAL_DEVIATION * (2 * self.config.layers) ** -0.5)

    def make_table_init(self) -> Initializer:
        """Normal."""
        return nn.initializers.normal(INITIAL_DEVIATION)

    def make_embedding(self) -> nn.Module:
        """Embeds tokens and makes the logits, see `tfm.layers.Embedding`."""
        config = self.config
        return layers.Embedding(
            self.vocabulary_size,
            config.d_model,
            jnp.dtype(config.dtype),
            scale=None if config.scale_embedding else 1.0,
            table_init=self.make_table_init(),
            tied=config.tied_embeddings,
        )

    def make_layer(self) -> nn.Module:
        """One layer of the stack."""
        layer = layers.CausalLayer(self.make_causal_mixer(), self.make_feed_forward(), self.make_residual)
        constants = layers.single_stack_constants(self.config.layers)
        return layers.apply_deep_norm(layer, constants) if self.config.deep_norm else layer

    def __call__(
        self,
        tokens: jax.Array,
        *,
        positions: jax.Array | None = None,
        segments: jax.Array | None = None,
        train: bool,
    ) -> jax.Array:
        """Logits [B, L, V] of each next token, in the compute dtype; arguments as in `features`."""
        x, _ = self.features(tokens, positions=positions, segments=segments, train=train)
        return activations.observe(self, "logits", self.embedding.logits(x), "BLV", positions=positions)

    def features(
        self,
        tokens: jax.Array,
        *,
        positions: jax.Array | None = None,
        segments: jax.Array | None = None,
        train: bool,
    ) -> tuple[jax.Array, jax.Array]:
        """The stack's output and the output table, whose product is the logits of each next token.

        Args:
          tokens: int [B, L].
          positions: int [B, L] within the segment; 0, 1, 2, ... when None. One beyond a table of learned
            positions gives NaN.
          segments: int [B, L], for rows packed with several texts; 0 is padding. When None a row is one text.
          train: turns dropout on.

        Returns:
          x [B, L, D] in the compute dtype and the table [V, D]; the logits are x @ table.T.

        Raises:
          ValueError: no positions are given, and L is above `config.max_length`.
        """
        index = jnp.arange(tokens.shape[-1])
        mask = causal_mask(index, index)[None]
        if segments is not None:
            mask = mask & segment_mask(segments, segments)
        positions = self._positions(positions, tokens)
        x = self._embed("decoder", tokens, self.positions, positions, train=train)
        return self.decoder(x, mask=mask, positions=positions, train=train), self.embedding.output_table

    def init_cache(self, context: jax.Array, *, width: int, max_length: int) -> PrefixCache:
        """The cache of W = `width` hypotheses of T = `max_length` positions that continue a context.

        Args:
          context: int [B, P], P from 0: tokens that all hypotheses of a row follow, padded with 0 behind.
          width: W.
          max_length: T.

        Raises:
          ValueError: P + T is above `config.max_length`.
        """
        batch, length = context.shape
        self._check_length(length + max_length)
        x = self.embedding(jnp.zeros((batch, 1), jnp.int32))
        cache = PrefixCache(
            layers=self.decoder.init_cache(x, width, max_length),
            ancestors=jnp.zeros((batch, width, max_length), jnp.int32),
            prefix_mask=jnp.zeros((batch, 0), bool),
        )
        return self.prefill(context, cache) if length else cache

    def prefill(self, tokens: jax.Array, cache: PrefixCache) -> PrefixCache:
        """The cache with tokens behind its prefix, in one pass that all hypotheses of a row share.

        Args:
          tokens: int [B, P], padded with 0 behind.
          cache: one in which no hypothesis has a token yet.

        Returns:
          The cache. Its prefix is what the first tokens of the hypotheses follow.
        """
        mask = tokens != PAD_ID
        positions = cache.prefix_lengths[:, None] + jnp.cumsum(mask, axis=-1) - 1
        # Padding has a position all the same, so that nothing is read beyond a table.
        positions = jnp.maximum(positions, 0)
        x = self._embed("decoder", tokens, self.positions, positions, train=False)
        cache = cache.append_prefix(mask)
        slots = jnp.arange(cache.prefix_mask.shape[1])
        visible = causal_mask(slots[-tokens.shape[1] :], slots)[None] & cache.prefix_mask[:, None, None]
        written = self.decoder.prefill(
            x,
            cache.layers,
            mask=visible,
            positions=positions,
            memory_positions=cache.prefix_positions(),
        )
        return cache.replace(layers=written)

    def decode_step(
        self, tokens: jax.Array, cache: PrefixCache, position: jax.Array
    ) -> tuple[jax.Array, PrefixCache]:
        """Logits of the next token of each hypothesis.

        Args:
          tokens: int [B, W], the last token of each.
          cache: a `PrefixCache`.
          position: int scalar, counted from 0 behind the prefix; equal for all.

        Returns:
          logits [B, W, V] and the cache, this position written.
        """
        cache = cache.begin(position)
        positions = jnp.broadcast_to(cache.prefix_lengths[:, None] + position, tokens.shape)
        x = self._embed("decoder", tokens, self.positions, positions, train=False)
        x, written = self.decoder.decode_step(
            x,
            cache.layers,
            position,
            mask=cache.slot_mask(position),
            positions=positions,
            memory_positions=cache.slot_positions(),
        )
        logits = activations.observe(self, "logits", self.embedding.logits(x), "BLV", positions=positions)
        return logits, cache.replace(layers=written)


Config = DecoderLMConfig
Model = DecoderLM
