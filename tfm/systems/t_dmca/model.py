"""A language model of long texts: the Transformer decoder with memory-compressed attention (T-DMCA).

See Liu et al. 2018, section 4.2.3. Layers alternate between two kinds of self-attention. Local attention (L)
sees the earlier tokens of a block of positions. Memory-compressed attention (M) sees all completed windows of
R earlier tokens, through one key and one value that a convolution computes from each window. So a token does
not see up to R - 1 of the newest tokens in M, but sees them in L. Both kinds compute and cache only the keys
that they see. For a row of N tokens, time and memory grow with N * block in L, and with N * N /
R in M. A decoded token reads one block of keys in L, and N / R keys in M.

Shape letters as in `tfm.layers`. P is the number of positions of a prefix, and P' the number of positions
that are appended to it. R is the kernel and stride of the convolution, C is the number of compressed keys, S
is the number of slots of a hypothesis, and G is the number of heads of keys and values.
"""

import dataclasses
import re
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from tfm import layers
from tfm.config import without_fields
from tfm.layers.block_config import fixed_field
from tfm.models.decoder_lm import DecoderLM, DecoderLMConfig
from tfm.systems.t_dmca.compressed_layer import CompressedLayer, CompressibleAttention
from tfm.systems.t_dmca.local_layer import LocalLayer


@dataclasses.dataclass(frozen=True)
@without_fields(feed_forward_kernel=1)  # the layers' own caches have no windows of a convolution
class TDMCAConfig(DecoderLMConfig):
    """The config of a decoder with two kinds of attention. The defaults describe T-DMCA (section 4.2)."""

    name: str = "t_dmca"
    layers: int = 5
    d_model: int = 512
    d_ff: int = 2048
    heads: int = 8
    activation: str = "relu"
    positions: str = "interleaved"
    scale_embedding: bool = True
    pattern: str = fixed_field(
        "LM",
        "Kinds of attention of the layers, repeated up to the last layer: L for local attention, M for "
        "memory-compressed attention.",
        pattern=re.compile("[LM]{1,1000}"),
        form="letters L and M",
    )
    local_block: int = fixed_field(
        256, "Number of positions of a block of local attention.", minimum=1, maximum=1 << 20, unit="tokens"
    )
    compression: int = fixed_field(
        3,
        "Kernel and stride of the convolution over keys and values.",
        minimum=1,
        maximum=1024,
        unit="tokens",
    )


class TDMCA(DecoderLM):
    """A language model that implements `tfm.decoding.protocol.LanguageModel`.

    Attributes:
      config: See `TDMCAConfig`.
      vocabulary_size: Size of the vocabulary, V.
    """

    config: TDMCAConfig
    attention_class = CompressibleAttention
    # The attentions of the two kinds of layers have different numbers of keys, so no figure can show both.
    attention_points: ClassVar[dict[str, str]] = {}
    attention_tracks: ClassVar[dict[str, tuple[str, str]]] = {}
    embedding_tracks: ClassVar[dict[str, str]] = {"read": "decoder.embeddings"}

    def make_layer(self, index: int) -> nn.Module:
        """Returns the layer with this index, counted from 0."""
        config = self.config
        attention: Any = self.make_masked_self_attention()
        is_local = config.pattern[index % len(config.pattern)] == "L"
        if not is_local:
            attention = attention.clone(stride=config.compression)
        plain: Any = self.make_layer_with(layers.single_stack_constants(config.layers), attention)
        parts = {"self_attention": plain.self_attention, "feed_forward": plain.feed_forward}
        if is_local:
            return LocalLayer(**parts, residual=plain.residual, block=config.local_block)
        return CompressedLayer(**parts, residual=plain.residual, stride=config.compression)

    def features(
        self,
        tokens: Array,
        *,
        positions: Array | None = None,
        segments: Array | None = None,
        train: bool,
    ) -> tuple[Array, Array]:
        """Returns the output of the stack and the output table, see `DecoderLM.features`."""
        positions = self.positions_or_index(positions, tokens)
        (positions,) = self.shift_positions(positions, rows=len(tokens), train=train)
        positions = jnp.broadcast_to(positions, tokens.shape)
        segments = jnp.ones_like(tokens) if segments is None else segments
        norm = self.decoder_embedding_norm
        x = self.embedding(tokens)
        x = self.add_positions("decoder", x, self.positions, positions, norm=norm, train=train)
        x = self.decoder(x, segments=segments, positions=positions, train=train)
        return self.embedding.fused_inputs(x)


Config = TDMCAConfig
Model = TDMCA
