"""The Transformer (section 3): encoder, decoder, and incremental decoding over an explicit cache."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm import layers
from tfm.attention_kernels import IMPLEMENTATIONS, unsupported_reason
from tfm.errors import UserError
from tfm.fields import CHANGEABLE, NEVER, check_fields, field
from tfm.layers import activations
from tfm.layers.kv_cache import DecodeCache
from tfm.masks import causal_mask, padding_mask, segment_mask
from tfm.memory_estimate import TransformerMemory
from tfm.positions import LAYOUTS

PAD_ID = 0
# Fields on which the shape or the meaning of the weights depends, and rates of dropout: nearer to 1, almost
# nothing is kept, and at 1 - 2^-25 the kept fraction is 0 in float32.
fixed_field = functools.partial(field, resume=NEVER, warm_start=False)
rate_field = functools.partial(field, least=0, most=0.999)


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """The paper's base model; each default is the paper's, each deviation a field."""

    name: str = fixed_field("transformer", "A module of tfm.models.")
    encoder_layers: int = fixed_field(6, "N of the encoder.", least=1, most=1000, unit="layers")
    decoder_layers: int = fixed_field(6, "N of the decoder.", least=1, most=1000, unit="layers")
    d_model: int = fixed_field(512, "D, of each token in every layer.", least=1, most=65_536, unit="features")
    d_ff: int = fixed_field(2048, "F, of each feed-forward network.", least=1, most=1 << 20, unit="features")
    heads: int = fixed_field(8, "H, of each attention.", least=1, most=1024, unit="heads")
    key_features: int | None = fixed_field(
        None, "Of each head's keys; None is D / H.", least=1, most=65_536, unit="features"
    )
    value_features: int | None = fixed_field(
        None, "Of each head's values; None is D / H.", least=1, most=65_536, unit="features"
    )
    key_value_heads: int | None = fixed_field(
        None,
        "G, heads of keys and values, which divides H: each serves H / G heads of queries; None is H.",
        least=1,
        most=1024,
        unit="heads",
    )
    scale_attention: bool = fixed_field(
        True, "Divides the logits of attention by sqrt(K), as the paper does."
    )
    attention_window: int | None = fixed_field(
        None,
        "r of restricted self-attention (section 4): the positions that each one sees, itself in the middle; "
        "None for all.",
        least=1,
        most=1 << 20,
        unit="tokens",
    )
    attention_bias: bool = fixed_field(False, "Biases on the attention projections, as in the authors' code.")
    activation: str = fixed_field(
        "relu",
        "Of the feed-forward networks; gelu is exact, gelu_tanh its approximation of GPT-2 and BERT.",
        choices=tuple(layers.ACTIVATIONS),
    )
    gated: bool = fixed_field(
        False,
        "Multiplies the hidden layer by a second product: GLU with activation sigmoid, SwiGLU with swish, "
        "GEGLU with gelu.",
    )
    norm: str = fixed_field("layer_norm", "layer_norm (the paper) or rms_norm.", choices=tuple(layers.NORMS))
    norm_order: str = fixed_field(
        "post",
        "post (the paper), pre or norm_then_add; the latter two end each stack in a norm.",
        choices=layers.NORM_ORDERS,
    )
    deep_norm: bool = fixed_field(
        False,
        "DeepNorm: weights of the residual connections and initialization by depth; needs norm_order post.",
    )
    layer_norm_epsilon: float = fixed_field(
        layers.LAYER_NORM_EPSILON,
        "Added to the variance, or mean square; the paper names none, 1e-6 is its authors' code's.",
        least=1e-12,
        most=1,
    )
    dropout: float = rate_field(0.1, "P_drop, of each sublayer's output and of the embedding sums.")
    attention_dropout: float = rate_field(0.0, "Of attention weights; 0.1 in the authors' later code.")
    feed_forward_dropout: float = rate_field(0.0, "Of the hidden layer; 0.1 in the authors' later code.")
    positions: str = fixed_field(
        "interleaved",
        "Layout of the sinusoids, interleaved (the paper) or concatenated (its authors' code); learned "
        "(Table 3, row E): a table for the encoder and one for the decoder; none; or in self-attention "
        "rotary, relative_keys (Shaw), relative_bias (T5) or alibi.",
        choices=layers.POSITIONS,
    )
    max_positions: int = fixed_field(
        1024,
        "Maximum tokens of a sequence with learned positions; sinusoids ignore it.",
        least=1,
        most=1 << 20,
        unit="tokens",
    )
    tied_embeddings: str = fixed_field(
        "three",
        "Of the matrices of source, target and logits: three are one (the paper), two, those of target and "
        "logits, or none.",
        choices=("three", "two", "none"),
    )
    attention: str | None = field(
        None,
        "None as the paper writes it, or a fused kernel, which needs attention_dropout 0 and equal key and "
        "value features; cudnn also bfloat16 and a CUDA device.",
        choices=IMPLEMENTATIONS,
        resume=CHANGEABLE,
    )
    remat: bool = field(
        False,
        "The backward pass recomputes activations, a layer at a time, instead of storing them.",
        resume=CHANGEABLE,
    )
    scan: bool = field(False, "Layers are compiled once for each stack, not once each.", resume=CHANGEABLE)
    dtype: str = field(
        "float32",
        "Of the computation; parameters, softmax and norms are float32.",
        choices=("float32", "bfloat16"),
    )

    def __post_init__(self):
        check_fields(self, "model")
        check_sizes(self)

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

    @property
    def max_length(self) -> int | None:
        """The maximum number of tokens of a sequence, where positions are learned; None for no limit."""
        return self.max_positions if self.positions == "learned" else None


def check_sizes(config: Any) -> None:
    """Checks that the fields of a stack fit together: positions, heads, and attention.

    Args:
      config: with the fields of `TransformerConfig` that a stack of layers has.

    Raises:
      UserError: they do not.
    """
    if config.d_model % 2 and config.positions in LAYOUTS:
        raise UserError(f"model.d_model must be even for sinusoidal positions, got {config.d_model}.")
    if None in (config.key_features, config.value_features) and config.d_model % config.heads:
        raise UserError(
            f"model.d_model {config.d_model} does not divide into {config.heads} heads: choose another "
            "number of heads, or set model.key_features and model.value_features."
        )
    if config.deep_norm and config.norm_order != "post":
        raise UserError(
            f"model.deep_norm needs model.norm_order 'post', got {config.norm_order!r}: set one or the other."
        )
    _check_attention(config)


def _check_attention(config):
    """Raises a UserError where heads, positions and implementation of attention do not fit together."""
    key_features = config.key_features or config.d_model // config.heads
    if key_features % 2 and config.positions == "rotary":
        raise UserError(
            f"model.positions 'rotary' needs even key features, got {key_features}: set model.key_features."
        )
    if config.heads % (config.key_value_heads or 1):
        raise UserError(
            f"model.key_value_heads must divide model.heads {config.heads}, got {config.key_value_heads}."
        )
    if config.attention == "cudnn" and config.positions in layers.BIAS_POSITIONS:
        raise UserError(
            f"model.attention 'cudnn' is not for positions that add to the logits, got model.positions "
            f"{config.positions!r}: set model.attention to None or 'xla', or choose other positions."
        )
    reason = unsupported_reason(
        config.attention,
        key_features=key_features,
        value_features=config.value_features or config.d_model // config.heads,
        dropout_rate=config.attention_dropout,
        dtype=config.dtype,
    )
    if reason:
        raise UserError(f"model.attention {config.attention!r} {reason}; change that, or model.attention.")


class Transformer(layers.TransformerParts):
    """Sequence-to-sequence Transformer.

    Each part comes from a method `make_...`, and a subclass replaces it by overriding that:

        class RMSTransformer(Transformer):
            def make_norm(self, name=None):
                return nn.RMSNorm(name=name)

    Attributes:
      config: every choice, see `TransformerConfig`.
      vocabulary_size: V, of the one matrix that embeds source and target and makes the logits (section 3.4).
    """

    config: TransformerConfig
    vocabulary_size: int
    attention_points: ClassVar[dict[str, str]] = {  # see `tfm.decoding.protocol.SequenceToSequence`
        "encoder": "encoder.layers_*.mixer.weights",
        "decoder": "decoder.layers_*.mixer.weights",
        "cross": "decoder.layers_*.cross_attention.weights",
    }

    @property
    def memory_estimate(self) -> TransformerMemory:
        """Its bytes, by arithmetic."""
        return TransformerMemory(self.config, self.vocabulary_size)

    def setup(self) -> None:
        config = self.config
        self._check_device()
        self.embedding = self.make_embedding()
        self.source_embedding = self.make_source_embedding() or self.embedding
        self.encoder_positions, self.decoder_positions = self.make_positions(), self.make_positions()
        self.dropout = layers.Dropout(config.dropout)
        self.encoder = self.make_stack(self.make_encoder_layer, config.encoder_layers)
        self.decoder = self.make_stack(self.make_decoder_layer, config.decoder_layers)

    def make_embedding(self) -> nn.Module:
        """Embeds source and target and makes the logits, see `tfm.layers.Embedding`."""
        config = self.config
        tied = config.tied_embeddings != "none"
        return layers.Embedding(self.vocabulary_size, config.d_model, jnp.dtype(config.dtype), tied=tied)

    def make_source_embedding(self) -> nn.Module | None:
        """Embeds the source; None where the matrix of `make_embedding` does."""
        config = self.config
        if config.tied_embeddings == "three":
            return None
        return layers.Embedding(self.vocabulary_size, config.d_model, jnp.dtype(config.dtype))

    def make_cross_attention(self) -> nn.Module:
        """The decoder's attention over the encoder's output."""
        return self.make_attention()

    def make_encoder_layer(self) -> nn.Module:
        """One layer of the encoder."""
        layer = layers.EncoderLayer(self.make_mixer(), self.make_feed_forward(), self.make_residual)
        constants, _ = self._deep_norm_constants()
        return layers.apply_deep_norm(layer, constants) if self.config.deep_norm else layer

    def make_decoder_layer(self) -> nn.Module:
        """One layer of the decoder."""
        layer = layers.DecoderLayer(
            self.make_causal_mixer(),
            self.make_cross_attention(),
            self.make_feed_forward(),
            self.make_residual,
        )
        _, constants = self._deep_norm_constants()
        return layers.apply_deep_norm(layer, constants) if self.config.deep_norm else layer

    @nn.nowrap
    def _deep_norm_constants(self):
        """Of the encoder and of the decoder."""
        config = self.config
        return layers.encoder_decoder_constants(config.encoder_layers, config.decoder_layers)

    def __call__(
        self, inputs: jax.Array, targets: jax.Array, *, train: bool, **packing: jax.Array | None
    ) -> jax.Array:
        """Logits [B, L, V] of each next target token, in the compute dtype; arguments as in `features`."""
        x, _ = self.features(inputs, targets, train=train, **packing)
        logits = self.embedding.logits(x)
        return activations.observe(self, "logits", logits, "BLV", positions=packing.get("target_positions"))

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
        """Decoder output and output table, whose product is the logits of each next target token.

        Args:
          inputs: int [B, M] source tokens, 0 is padding.
          targets: int [B, L] decoder input: the target shifted right, beginning with BOS.
          input_positions, target_positions: [B, M] and [B, L] within the segment; 0, 1, 2, ... when None.
            One beyond a table of learned positions gives NaN.
          input_segments, target_segments: [B, M] and [B, L], for rows packed with several sentences; 0 is
            padding. When None each row is one sentence, padded with token 0.
          train: turns dropout on.

        Returns:
          x [B, L, D] in the compute dtype and the table [V, D]; the logits are x @ table.T.

        Raises:
          ValueError: no positions are given, and M or L is above `config.max_length`.
        """
        if input_segments is None:
            input_segments = (inputs != PAD_ID).astype(jnp.int32)
        if target_segments is None:
            target_segments = jnp.ones_like(targets)
        memory = self.encode(inputs, positions=input_positions, segments=input_segments, train=train)
        x = self.decode(
            targets,
            memory,
            memory_mask=segment_mask(target_segments, input_segments),
            positions=target_positions,
            memory_positions=input_positions,
            segments=target_segments,
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
        """inputs [B, M] -> memory [B, M, D]."""
        mask = padding_mask(inputs) if segments is None else segment_mask(segments, segments)
        positions = self._positions(positions, inputs)
        x = self.source_embedding(inputs)
        x = self._add_positions("encoder", x, self.encoder_positions, positions, train=train)
        return self.encoder(x, mask=mask, positions=positions, train=train)

    def decode(
        self,
        targets: jax.Array,
        memory: jax.Array,
        *,
        memory_mask: jax.Array | None,
        positions: jax.Array | None = None,
        memory_positions: jax.Array | None = None,
        segments: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """targets [B, L], memory [B, M, D], memory_mask [B, 1, 1 or L, M] -> decoder output [B, L, D]."""
        index = jnp.arange(targets.shape[-1])
        mask = causal_mask(index, index)[None]
        if segments is not None:
            mask = mask & segment_mask(segments, segments)
        positions = self._positions(positions, targets)
        x = self._embed("decoder", targets, self.decoder_positions, positions, train=train)
        return self.decoder(
            x,
            memory,
            mask=mask,
            memory_mask=memory_mask,
            positions=positions,
            memory_positions=jnp.arange(memory.shape[1]) if memory_positions is None else memory_positions,
            train=train,
        )

    def init_cache(self, inputs: jax.Array, *, width: int, max_length: int) -> DecodeCache:
        """Encodes inputs [B, M]: the cache of W = `width` hypotheses of T = `max_length` positions.

        Raises:
          ValueError: M or T is above `config.max_length`.
        """
        self._check_length(max_length)
        memory, (batch, length) = self.encode(inputs), inputs.shape
        return DecodeCache(
            layers=self.decoder.init_cache(memory, width, max_length),
            memory_mask=padding_mask(inputs),
            ancestors=jnp.zeros((batch, width, max_length), jnp.int32),
            coverage=jnp.zeros((batch, width, length), jnp.float32),
        )

    def decode_step(
        self, tokens: jax.Array, cache: DecodeCache, position: jax.Array
    ) -> tuple[jax.Array, DecodeCache]:
        """Logits of the next token of each hypothesis.

        Args:
          tokens: int [B, W], the last token of each (BOS at position 0).
          cache: a `DecodeCache`.
          position: int scalar, counted from 0; equal for all.

        Returns:
          logits [B, W, V] and the cache, this position written.
        """
        cache = cache.begin(position)
        position_of_each = jnp.full(tokens.shape, position)
        x = self._embed("decoder", tokens, self.decoder_positions, position_of_each, train=False)
        x, written = self.decoder.decode_step(
            x, cache.layers, position, mask=cache.ancestor_mask(position), memory_mask=cache.memory_mask
        )
        logits = self.embedding.logits(x)
        logits = activations.observe(self, "logits", logits, "BLV", positions=position)
        return logits, cache.replace(layers=written)


Config = TransformerConfig
Model = Transformer
