"""The encoder-decoder Transformer (section 3), with incremental decoding over an explicit cache.

Shape letters as in `tfm.layers`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm import layers
from tfm.layers.block_config import SequenceConfig, fixed_field
from tfm.layers.kv_cache import DecodingCache
from tfm.layers.observe import observe
from tfm.masks import causal_mask, padding_mask, segment_mask
from tfm.memory_estimate import TransformerMemory

PAD_ID = 0


@dataclasses.dataclass(frozen=True)
class TransformerConfig(SequenceConfig):
    """The paper's model. The defaults are those of the base model."""

    name: str = "transformer"
    encoder_layers: int = fixed_field(6, "Number of encoder layers, N.", least=1, most=1000, unit="layers")
    decoder_layers: int = fixed_field(6, "Number of decoder layers, N.", least=1, most=1000, unit="layers")
    tied_embeddings: str = fixed_field(
        "three",
        "Embedding matrices that are shared: three (source, target and output, as in the paper), two (target "
        "and output) or none.",
        choices=("three", "two", "none"),
    )

    @staticmethod
    def upgrade(section: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
        """A section of an older version in the meaning of this one, and what changed in it; "" for nothing.

        Before there was a layer_norm_epsilon, "gelu" was the tanh form. There was a field
        for the size of the vocabulary, which was not read.
        """
        section = {name: value for name, value in section.items() if name != "vocabulary_size"}
        if section.get("activation") != "gelu" or "layer_norm_epsilon" in section:
            return section, ""
        section = {**section, "activation": "gelu_tanh"}
        return section, "activation 'gelu' was the tanh form, and is read as 'gelu_tanh'"


class Transformer(layers.TransformerBase):
    """A sequence-to-sequence Transformer, a `tfm.decoding.protocol.SequenceToSequence`.

    A subclass replaces a submodule by overriding the method that makes it:

        class RMSTransformer(Transformer):
            def make_norm(self, name=None):
                return nn.RMSNorm(name=name)

    Attributes:
      config: See `TransformerConfig`.
      vocabulary_size: Size of the vocabulary that source and target share, V.
    """

    config: TransformerConfig
    vocabulary_size: int
    attention_points: ClassVar[dict[str, str]] = {  # see `tfm.decoding.protocol.SequenceToSequence`
        "encoder": "encoder.layers_*.self_attention.weights",
        "decoder": "decoder.layers_*.self_attention.weights",
        "cross": "decoder.layers_*.cross_attention.weights",
    }

    @property
    def memory_estimate(self) -> TransformerMemory:
        """The bytes that the model needs, computed from its config."""
        return TransformerMemory(self.config, self.vocabulary_size)

    def setup(self) -> None:
        config = self.config
        self.check_device()
        self.embedding = self.make_embedding()
        self.source_embedding = self.make_source_embedding() or self.embedding
        self.encoder_positions, self.decoder_positions = self.make_positions(), self.make_positions()
        self.dropout = layers.Dropout(config.dropout)
        self.encoder = self.make_stack(self.make_encoder_layer, config.encoder_layers)
        self.decoder = self.make_stack(self.make_decoder_layer, config.decoder_layers)

    def make_embedding(self) -> nn.Module:
        """Returns the embedding that makes the logits, too. It embeds the target, and the source if tied."""
        config = self.config
        tied = config.tied_embeddings != "none"
        return layers.Embedding(self.vocabulary_size, config.d_model, jnp.dtype(config.dtype), tied=tied)

    def make_source_embedding(self) -> nn.Module | None:
        """Returns the embedding of the source, or None if `make_embedding` embeds source and target."""
        config = self.config
        if config.tied_embeddings == "three":
            return None
        return layers.Embedding(self.vocabulary_size, config.d_model, jnp.dtype(config.dtype))

    def make_cross_attention(self) -> nn.Module:
        """Returns the decoder's attention to the encoder output."""
        return self.make_attention()

    def make_encoder_layer(self, index: int) -> nn.Module:
        """Returns the encoder layer number `index`, counted from 0."""
        del index  # all layers are equal
        layer = layers.Layer(
            self.make_self_attention(), self.make_feed_forward(), residual=self.make_residual
        )
        return self._deep_norm(layer, stack=0)

    def make_decoder_layer(self, index: int) -> nn.Module:
        """Returns the decoder layer number `index`, counted from 0."""
        del index  # all layers are equal
        layer = layers.Layer(
            self.make_masked_self_attention(),
            self.make_feed_forward(),
            self.make_cross_attention(),
            self.make_residual,
        )
        return self._deep_norm(layer, stack=1)

    @nn.nowrap
    def _deep_norm(self, layer, stack):
        config = self.config
        constants = layers.encoder_decoder_constants(config.encoder_layers, config.decoder_layers)[stack]
        return layers.apply_deep_norm(layer, constants) if config.deep_norm else layer

    def __call__(
        self, inputs: jax.Array, targets: jax.Array, *, train: bool, **packing: jax.Array | None
    ) -> jax.Array:
        """Returns the logits [B, L, V] of each next target token. The arguments are those of `features`."""
        x, _ = self.features(inputs, targets, train=train, **packing)
        return self._logits(x, packing.get("target_positions"))

    def features(
        self,
        inputs: jax.Array,
        targets: jax.Array,
        *,
        input_positions: jax.Array | None = None,
        input_segments: jax.Array | None = None,
        target_positions: jax.Array | None = None,
        target_segments: jax.Array | None = None,
        train: bool,
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the decoder output and the output table, whose product is the logits.

        Args:
          inputs: Source tokens, int [B, M], padded with 0.
          targets: Decoder input, int [B, L]. It is the target shifted right and begins with BOS.
          input_positions, target_positions: Positions within the segment, [B, M] and [B, L]. None counts from
            0. A position beyond a table of learned positions gives NaN.
          input_segments, target_segments: Segments of rows that contain several sentences, [B, M] and [B, L].
            0 is padding. None means one sentence in each row.
          train: Whether dropout is on.

        Returns:
          x [B, L, D] in the compute dtype and the table [V, D]. The logits are x @ table.T.

        Raises:
          ValueError: No positions are given, and M or L is above `config.max_length`.
        """
        if input_segments is None:
            input_segments = (inputs != PAD_ID).astype(jnp.int32)
        if target_segments is None:
            target_segments = jnp.ones_like(targets)
        encoder_output = self.encode(inputs, positions=input_positions, segments=input_segments, train=train)
        index = jnp.arange(targets.shape[-1])
        positions = self.positions_or_index(target_positions, targets)
        x = self.embedding(targets)
        x = self.add_positions("decoder", x, self.decoder_positions, positions, train=train)
        x = self.decoder(
            x,
            encoder_output,
            mask=causal_mask(index, index)[None] & segment_mask(target_segments, target_segments),
            source_mask=segment_mask(target_segments, input_segments),
            positions=positions,
            source_positions=self.positions_or_index(input_positions, inputs),
            train=train,
        )
        return x, self.embedding.output_table

    def encode(
        self,
        inputs: jax.Array,
        *,
        positions: jax.Array | None = None,
        segments: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """Returns the encoder output [B, M, D] of source tokens [B, M]. See `features` for the arguments."""
        mask = padding_mask(inputs) if segments is None else segment_mask(segments, segments)
        positions = self.positions_or_index(positions, inputs)
        x = self.source_embedding(inputs)
        x = self.add_positions("encoder", x, self.encoder_positions, positions, train=train)
        return self.encoder(x, mask=mask, positions=positions, train=train)

    def init_cache(self, inputs: jax.Array, *, width: int, max_length: int) -> DecodingCache:
        """Encodes inputs [B, M] and returns a cache of W = `width` hypotheses of T = `max_length` positions.

        Raises:
          ValueError: M or T is above `config.max_length`.
        """
        self.check_length(max_length)
        encoder_output, (batch, length) = self.encode(inputs), inputs.shape
        return DecodingCache(
            layers=self.decoder.init_cache(
                encoder_output[:, :1], encoder_output, width=width, max_length=max_length
            ),
            ancestors=jnp.zeros((batch, width, max_length), jnp.int32),
            source_mask=padding_mask(inputs),
            coverage=jnp.zeros((batch, width, length), jnp.float32),
        )

    def decode_step(
        self, tokens: jax.Array, cache: DecodingCache, position: jax.Array
    ) -> tuple[jax.Array, DecodingCache]:
        """Returns logits [B, W, V] of the next tokens, and the cache with the keys and values of this step.

        Args:
          tokens: Last token of each hypothesis, int [B, W]; BOS at position 0.
          cache: A `DecodingCache`.
          position: Scalar, counted from 0 and shared by the whole batch.
        """
        cache, positions = cache.claim_slots(position), cache.positions(position)
        each_position = jnp.broadcast_to(positions, tokens.shape)
        x = self.embedding(tokens)
        x = self.add_positions("decoder", x, self.decoder_positions, each_position, train=False)
        x, written = self.decoder.decode_step(
            x,
            cache.layers,
            position,
            mask=cache.history_mask(position),
            positions=positions,
            key_positions=cache.slot_positions(),
            source_mask=cache.source_mask,
        )
        return self._logits(x, positions), cache.replace(layers=written)

    def _logits(self, x, positions):
        return observe(self, "logits", self.embedding.logits(x), "BLV", positions=positions)


Config = TransformerConfig
Model = Transformer
