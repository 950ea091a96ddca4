"""The encoder-decoder Transformer (section 3), for training and for incremental decoding with a cache.

Shape letters as in `tfm.layers`.
"""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm import layers
from tfm.layers.block_config import SequenceConfig, fixed_field
from tfm.layers.kv_cache import DecodingCache
from tfm.masks import PAD_ID, AttentionMask, padding_mask


@dataclasses.dataclass(frozen=True)
class TransformerConfig(SequenceConfig):
    """The config of the paper's Transformer. The defaults describe the base model."""

    name: str = "transformer"
    encoder_layers: int = fixed_field(
        6, "Number of encoder layers, N.", minimum=1, maximum=1000, unit="layers"
    )
    decoder_layers: int = fixed_field(
        6, "Number of decoder layers, N.", minimum=1, maximum=1000, unit="layers"
    )
    tied_embeddings: str = fixed_field(
        "three",
        "Embedding matrices that are shared: three (source, target and output, as in the paper), two (target "
        "and output) or none of them.",
        choices=("three", "two", "none"),
    )


class Transformer(layers.TransformerBase):
    """A Transformer that implements `tfm.decoding.protocol.SequenceToSequence`.

    To replace a submodule, override the method that creates it:

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
    attention_tracks: ClassVar[dict[str, tuple[str, str]]] = {
        "encoder": ("source", "source"),
        "decoder": ("predicted", "read"),
        "cross": ("predicted", "source"),
    }

    def setup(self) -> None:
        config = self.config
        self.check_device()
        self.embedding = self.make_embedding()
        self.source_embedding = self.make_source_embedding() or self.embedding
        self.encoder_positions, self.decoder_positions = self.make_positions(), self.make_positions()
        self.encoder_embedding_norm = self.make_embedding_norm()
        self.decoder_embedding_norm = self.make_embedding_norm()
        self.dropout = layers.Dropout(config.dropout)
        self.encoder = self.make_stack(self.make_encoder_layer, config.encoder_layers)
        self.decoder = self.make_stack(self.make_decoder_layer, config.decoder_layers)

    def make_embedding(self) -> nn.Module:
        """Returns the embedding of the target. It also computes the logits.

        If `config.tied_embeddings` is "three", it embeds the source, too.
        """
        return self.make_token_embedding(tied=self.config.tied_embeddings != "none")

    def make_source_embedding(self) -> nn.Module | None:
        """Returns the embedding of the source, or None if source and target share `make_embedding`."""
        if self.config.tied_embeddings == "three":
            return None
        return self.make_token_embedding(tied=True).clone(use_bias=False)

    def make_cross_attention(self) -> nn.Module:
        """Returns the decoder's attention to the encoder output."""
        return self.make_attention()

    def make_encoder_layer(self, index: int) -> nn.Module:
        """Returns the encoder layer with this index, counted from 0."""
        del index  # all layers are equal
        return self.make_layer_with(self._constants()[0], self.make_self_attention())

    def make_decoder_layer(self, index: int) -> nn.Module:
        """Returns the decoder layer with this index, counted from 0."""
        del index  # all layers are equal
        attentions = self.make_masked_self_attention(), self.make_cross_attention()
        return self.make_layer_with(self._constants()[1], *attentions)

    @nn.nowrap
    def _constants(self) -> tuple[layers.DeepNorm, layers.DeepNorm]:
        """Returns the constants of DeepNorm for the encoder and for the decoder."""
        return layers.encoder_decoder_constants(self.config.encoder_layers, self.config.decoder_layers)

    def __call__(
        self, inputs: jax.Array, targets: jax.Array, *, train: bool, **packing: jax.Array | None
    ) -> jax.Array:
        """Returns the logits [B, L, V] of the next target token at each position.

        See `features` for the arguments.
        """
        x, _ = self.features(inputs, targets, train=train, **packing)
        return self.logits(x, packing.get("target_positions"))

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
        """Returns the decoder output and the output table. Their product is the logits.

        Args:
          inputs: Source tokens, int [B, M], padded with 0.
          targets: Decoder input, int [B, L]. This is the target shifted right by one position, with BOS as
            the first token.
          input_positions, target_positions: Position of each token within its segment, [B, M] and [B, L].
            None means 0, 1, 2, ... A position after the end of a table of learned positions gives NaN.
          input_segments, target_segments: Number of the sentence that each token belongs to, [B, M] and
            [B, L], for rows that contain several sentences. 0 is padding. Rows with one sentence can have
            booleans that are True for tokens, or None.
          train: Whether dropout is on.

        Returns:
          x [B, L, D] in the compute dtype and the table [V, D]. The logits are x @ table.T. With
          `config.logits_bias`, both have one more column, see `Embedding.fused_inputs`.

        Raises:
          ValueError: If positions are None and M or L is above `config.max_length`.
        """
        if input_segments is None:
            input_segments = inputs != PAD_ID
        if target_segments is None and input_segments.dtype != bool:
            target_segments = jnp.ones_like(targets)
        input_positions = self.positions_or_index(input_positions, inputs)
        positions = self.positions_or_index(target_positions, targets)
        both = self.shift_positions(input_positions, positions, rows=len(inputs), train=train)
        input_positions, positions = both
        encoder_output = self.encode(inputs, positions=input_positions, segments=input_segments, train=train)
        x = self.embedding(targets)
        norm = self.decoder_embedding_norm
        x = self.add_positions("decoder", x, self.decoder_positions, positions, norm=norm, train=train)
        x = self.decoder(
            x,
            encoder_output,
            mask=AttentionMask(target_segments, target_segments, causal=True),
            source_mask=AttentionMask(target_segments, input_segments),
            positions=positions,
            source_positions=input_positions,
            train=train,
        )
        return self.embedding.fused_inputs(x)

    def encode(
        self,
        inputs: jax.Array,
        *,
        positions: jax.Array | None = None,
        segments: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """Returns the encoder output [B, M, D] of source tokens [B, M]. See `features` for the arguments.

        Without segments, padding (0) is masked, and each row is one sentence.
        """
        mask = AttentionMask(segments, inputs != PAD_ID if segments is None else segments)
        positions = self.positions_or_index(positions, inputs)
        x = self.source_embedding(inputs)
        norm = self.encoder_embedding_norm
        x = self.add_positions("encoder", x, self.encoder_positions, positions, norm=norm, train=train)
        return self.encoder(x, mask=mask, positions=positions, train=train)

    def init_cache(self, inputs: jax.Array, *, width: int, max_length: int) -> DecodingCache:
        """Encodes source tokens int [B, M], padded with 0, and returns a cache for their hypotheses.

        The cache has space for W = `width` hypotheses of T = `max_length` tokens for each row.

        Raises:
          ValueError: If M or T is above `config.max_length`.
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


Config = TransformerConfig
Model = Transformer
