"""ConvS2S (Gehring et al. 2017): gated convolutions with attention to the source in every decoder layer.

All projections are weight-normalized. A sum of two terms is multiplied by sqrt(1/2), so that its variance
does not grow. Shape letters as in `tfm.layers`. E is the width of an embedding, C is the width of a layer,
and R is the width of a kernel.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm import layers
from tfm.attention import masked_softmax
from tfm.config import InheritsHelp, check_fields, field
from tfm.layers.block_config import fixed_field, name_field, rate_field, size_field
from tfm.layers.neighbours import gather_neighbours
from tfm.layers.observe import observe
from tfm.layers.state_cache import StateCache
from tfm.masks import PAD_ID, padding_mask, segment_mask
from tfm.systems.conv_s2s.weight_norm import WeightNormDense

TABLE_DEVIATION = 0.1  # standard deviation of the initial embeddings and positions (section 4.2)
SUM_SCALE = 0.5**0.5  # factor of a sum of two terms (section 3.4)
LAYERS = re.compile(r"[1-9]\d{0,2}x[1-9]\d{0,4}/[1-9]\d?(,[1-9]\d{0,2}x[1-9]\d{0,4}/[1-9]\d?)*")
Gather = Callable[[jax.Array], jax.Array]
_layers_field = functools.partial(fixed_field, pattern=LAYERS, form="such as 9x512/3,4x1024/3")


@dataclasses.dataclass(frozen=True)
class ConvS2SConfig(InheritsHelp):
    """The config of ConvS2S. The defaults describe the model for WMT16 English-Romanian (section 4.2)."""

    name: str = name_field("conv_s2s")
    encoder: str = _layers_field("20x512/3", "Encoder layers, as NUMBERxWIDTH/KERNEL for each kind of layer.")
    decoder: str = _layers_field("20x512/3", "Decoder layers, as NUMBERxWIDTH/KERNEL for each kind of layer.")
    embedding_features: int = size_field(512, "Width of the embeddings and of the output layer, E.")
    max_positions: int = fixed_field(
        1024,
        "Number of learned positions. It limits the length of a sequence.",
        minimum=1,
        maximum=1 << 20,
        unit="tokens",
    )
    dropout: float = rate_field(
        0.1, "Dropout rate of the embeddings, of the input of each layer and of the output."
    )
    dtype: str = field(
        "float32", "Compute dtype. Parameters and softmax are float32.", choices=("float32", "bfloat16")
    )

    def __post_init__(self):
        check_fields(self, "model")

    @property
    def max_length(self) -> int:
        """Maximum number of tokens in a sequence."""
        return self.max_positions


class LayerSize(NamedTuple):
    """The size of a convolutional layer."""

    width: int
    kernel: int


def list_layers(text: str) -> list[LayerSize]:
    """Returns the size of each layer of a config field.

    Examples:
      >>> [tuple(size) for size in list_layers("2x512/3,1x1024/1")]
      [(512, 3), (512, 3), (1024, 1)]
    """
    kinds = (map(int, re.split("[x/]", kind)) for kind in text.split(","))
    return [LayerSize(width, kernel) for number, width, kernel in kinds for _ in range(number)]


class GatedConvolution(nn.Module):
    """A convolution with a gated linear unit, in a residual connection (section 3.2).

    Attributes:
      width: Width of the output, C.
      config: See `ConvS2SConfig`.
    """

    width: int
    config: ConvS2SConfig

    @nn.compact
    def __call__(
        self, x: jax.Array, gather: Gather, attend: Gather = lambda x: x, *, train: bool
    ) -> jax.Array:
        """Applies the layer to x [B, L, D]. Returns [B, L, C].

        Args:
          x: [B, L, D].
          gather: Function that concatenates the R inputs that each position sees, [B, L, D] -> [B, L, R * D].
          attend: Function that adds attention to the output of the gate, [B, L, C] -> [B, L, C].
          train: Whether dropout is on.
        """
        config = self.config
        project = functools.partial(WeightNormDense, dtype=jnp.dtype(config.dtype))
        shortcut = x if x.shape[-1] == self.width else project(self.width, name="shortcut")(x)
        x = gather(layers.Dropout(config.dropout)(x, train=train))
        # The gate divides the variance by 4 (section 3.5), and dropout multiplies it by 1 / (1 - rate).
        gain = 4 * (1 - config.dropout)
        value, gate = jnp.split(project(2 * self.width, gain, name="convolution")(x), 2, axis=-1)
        return observe(self, "output", SUM_SCALE * (attend(value * nn.sigmoid(gate)) + shortcut))


class Encoded(NamedTuple):
    """The keys and the values of the source, each [B, M, E]."""

    keys: jax.Array
    values: jax.Array


class SourceAttention(nn.Module):
    """The attention of one decoder layer to the source (section 3.3)."""

    @nn.compact
    def __call__(self, x: jax.Array, embeddings: jax.Array, encoded: Encoded, mask: jax.Array) -> jax.Array:
        """Adds the attended source to x (equations 1 and 2).

        Args:
          x: Output of the gate, [B, L, C].
          embeddings: Embeddings of the tokens that the decoder reads, [B, L, E].
          encoded: Keys and values of the source.
          mask: bool [B, 1 or L, M], True where a position may attend.

        Returns:
          [B, L, C].
        """
        project = functools.partial(WeightNormDense, dtype=x.dtype)
        query = SUM_SCALE * (project(embeddings.shape[-1], name="query")(x) + embeddings)
        logits = jnp.einsum("ble,bme->blm", query, encoded.keys).astype(jnp.float32)
        weights = masked_softmax(logits, mask).astype(x.dtype)
        weights = observe(self, "weights", weights[:, None], "BHLM")[:, 0]
        # The sum of M values with equal weights has the variance 1 / M (section 3.4).
        source_length = jnp.maximum(mask.sum(-1, keepdims=True), 1).astype(x.dtype)
        context = jnp.sqrt(source_length) * jnp.einsum("blm,bme->ble", weights, encoded.values)
        return SUM_SCALE * (x + project(x.shape[-1], name="output")(context))


class ConvS2S(nn.Module):
    """A convolutional model that implements `tfm.decoding.protocol.SequenceToSequence`.

    Attributes:
      config: See `ConvS2SConfig`.
      vocabulary_size: Size of the vocabulary that source and target share, V.
    """

    config: ConvS2SConfig
    vocabulary_size: int
    attention_points: ClassVar[dict[str, str]] = {"cross": "attentions_*.weights"}
    attention_tracks: ClassVar[dict[str, tuple[str, str]]] = {"cross": ("predicted", "source")}

    def setup(self) -> None:
        config, dtype = self.config, jnp.dtype(self.config.dtype)
        init = nn.initializers.normal(TABLE_DEVIATION)
        features, keep = config.embedding_features, 1 - config.dropout
        embedding = functools.partial(
            layers.Embedding, self.vocabulary_size, features, dtype, scale=1.0, table_init=init
        )
        positions = functools.partial(layers.LearnedPositions, config.max_positions, features, init)
        project = functools.partial(WeightNormDense, dtype=dtype)
        self.source_embedding, self.target_embedding = embedding(), embedding()
        self.source_positions, self.target_positions = positions(), positions()
        self.dropout = layers.Dropout(config.dropout)
        self.encoder_sizes, self.decoder_sizes = list_layers(config.encoder), list_layers(config.decoder)
        self.encoder_input = project(self.encoder_sizes[0].width, keep)
        self.encoder = [GatedConvolution(size.width, config) for size in self.encoder_sizes]
        self.encoder_output = project(features)
        self.decoder_input = project(self.decoder_sizes[0].width, keep)
        self.decoder = [GatedConvolution(size.width, config) for size in self.decoder_sizes]
        self.attentions = [SourceAttention() for _ in self.decoder_sizes]
        self.decoder_output = project(features)
        self.output = project(self.vocabulary_size, keep)

    def __call__(
        self, inputs: jax.Array, targets: jax.Array, *, train: bool, **packing: jax.Array | None
    ) -> jax.Array:
        """Returns the logits [B, L, V] of the next target token at each position. See `features`."""
        x, table = self.features(inputs, targets, train=train, **packing)
        return x @ table.T

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
        """Returns the decoder output [B, L, E + 1] and the output table [V, E + 1].

        Their product is the logits. The last column of the table is the bias. For the arguments and the
        errors, see `tfm.models.Transformer.features`.
        """
        if input_segments is None:
            input_segments = (inputs != PAD_ID).astype(jnp.int32)
        if target_segments is None:
            target_segments = jnp.ones_like(targets)
        encoded = self.encode(inputs, positions=input_positions, segments=input_segments, train=train)
        embeddings = self._embed("target", targets, target_positions, train)
        gathers = [
            functools.partial(gather_neighbours, segments=target_segments, offsets=range(1 - size.kernel, 1))
            for size in self.decoder_sizes
        ]
        mask = segment_mask(target_segments, input_segments)[:, 0]
        return self._decode(embeddings, gathers, encoded, mask, train=train)

    def encode(
        self,
        inputs: jax.Array,
        *,
        positions: jax.Array | None = None,
        segments: jax.Array | None = None,
        train: bool = False,
    ) -> Encoded:
        """Encodes source tokens int [B, M]. See `features` for the arguments."""
        segments = (inputs != PAD_ID).astype(jnp.int32) if segments is None else segments
        embeddings = self._embed("source", inputs, positions, train)
        x = self.encoder_input(embeddings)
        for layer, (_, kernel) in zip(self.encoder, self.encoder_sizes, strict=True):
            offsets = range(-((kernel - 1) // 2), kernel // 2 + 1)
            gather = functools.partial(gather_neighbours, segments=segments, offsets=offsets)
            x = layer(x, gather, train=train)
        # Each decoder layer adds a gradient of the encoder output (section 3.5).
        keys = scale_gradient(self.encoder_output(x), 1 / (2 * len(self.attentions)))
        return Encoded(keys, SUM_SCALE * (keys + embeddings))

    def init_cache(self, inputs: jax.Array, *, width: int, max_length: int) -> StateCache:
        """Encodes source tokens int [B, M] and returns a cache for W = `width` hypotheses of each row.

        The cache contains the last R - 1 inputs of each decoder layer.

        Raises:
          ValueError: If M or `max_length` is above `config.max_length`.
        """
        self._check_length(max_length)
        (batch, length), dtype = inputs.shape, jnp.dtype(self.config.dtype)
        sizes = self.decoder_sizes
        input_widths = [sizes[0].width, *(size.width for size in sizes[:-1])]
        carry = [
            jnp.zeros((batch, width, size.kernel - 1, features), dtype)
            for features, size in zip(input_widths, sizes, strict=True)
        ]
        coverage = jnp.zeros((batch, width, length), jnp.float32)
        return StateCache(self.encode(inputs), padding_mask(inputs), carry, coverage)

    def decode_step(
        self, tokens: jax.Array, cache: StateCache, position: jax.Array
    ) -> tuple[jax.Array, StateCache]:
        """Returns the logits [B, W, V] after the last tokens int [B, W], and the next cache."""
        embeddings = self._embed("target", tokens, jnp.full(tokens.shape, position), train=False)
        carry: list[jax.Array] = []

        def append(x: jax.Array, last: jax.Array) -> jax.Array:
            """Returns the last R inputs of each hypothesis, [B, W, R * D], and caches R - 1 of them."""
            window = jnp.concatenate([last, x[:, :, None]], axis=2)
            carry.append(window[:, :, 1:])
            return window.reshape(*x.shape[:2], -1)

        gathers = [functools.partial(append, last=last) for last in cache.carry]
        x, table = self._decode(embeddings, gathers, cache.encoded, cache.source_mask[:, 0], train=False)
        return x @ table.T, cache.replace(carry=carry)

    def _decode(
        self,
        embeddings: jax.Array,
        gathers: Sequence[Gather],
        encoded: Encoded,
        mask: jax.Array,
        *,
        train: bool,
    ) -> tuple[jax.Array, jax.Array]:
        """Applies all decoder layers to the embeddings [B, L, E] of the target.

        `gathers` has the function of each layer that returns what its positions see.

        Returns:
          The output [B, L, E + 1] and the output table [V, E + 1].
        """
        x = self.decoder_input(embeddings)
        for layer, attention, gather in zip(self.decoder, self.attentions, gathers, strict=True):
            attend = functools.partial(attention, embeddings=embeddings, encoded=encoded, mask=mask)
            x = layer(x, gather, attend, train=train)
        x = self.dropout(self.decoder_output(x), train=train)
        return self.output.fused_inputs(x)

    def _embed(self, side: str, tokens: jax.Array, positions: jax.Array | None, train: bool) -> jax.Array:
        """Returns the sum of the embeddings of tokens [B, L] and of their positions, [B, L, E]."""
        if positions is None:
            self._check_length(tokens.shape[-1])
            positions = jnp.arange(tokens.shape[-1])
        x = getattr(self, f"{side}_embedding")(tokens)
        return self.dropout(x + getattr(self, f"{side}_positions")(positions).astype(x.dtype), train=train)

    def _check_length(self, length: int) -> None:
        """Raises a ValueError if `length` is above `config.max_length`."""
        if length > self.config.max_positions:
            raise ValueError(
                f"Expected at most {self.config.max_positions} positions (model.max_positions), got "
                f"{length}. Shorten the sequence, or train with model.max_positions={length}."
            )


def scale_gradient(x: jax.Array, factor: float) -> jax.Array:
    """Returns x, with a gradient that is multiplied by a factor."""
    return factor * x + jax.lax.stop_gradient((1 - factor) * x)


Config = ConvS2SConfig
Model = ConvS2S
