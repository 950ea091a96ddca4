"""The config of Transformer layers, from which the configs of models inherit.

A model's config adds its own fields and changes defaults by plain assignment:

    @dataclasses.dataclass(frozen=True)
    class DecoderLMConfig(SequenceConfig):
        layers: int = fixed_field(12, "Number of layers, N.", least=1, most=1000, unit="layers")
        d_model: int = 768  # keeps the help and the allowed values of BlockConfig
"""

import dataclasses
import functools

from tfm.attention_kernels import IMPLEMENTATIONS, unsupported_reason
from tfm.errors import UserError
from tfm.fields import CHANGEABLE, NEVER, InheritsHelp, check_fields, field
from tfm.layers.feed_forward import ACTIVATIONS
from tfm.layers.normalization import LAYER_NORM_EPSILON, NORMS
from tfm.layers.position_terms import BIAS_POSITIONS, POSITIONS
from tfm.layers.residual import NORM_ORDERS
from tfm.positions import LAYOUTS

# Neither a resumed run nor a warm start may change these fields, because the shapes or the meaning of the
# parameters depend on them.
fixed_field = functools.partial(field, resume=NEVER, warm_start=False)
size_field = functools.partial(fixed_field, least=1, most=65_536, unit="features")
# Near 1 almost nothing is kept, and at 1 - 2^-25 the kept fraction is 0 in float32.
rate_field = functools.partial(field, least=0, most=0.999)
speed_field = functools.partial(field, resume=CHANGEABLE)


@dataclasses.dataclass(frozen=True)
class BlockConfig(InheritsHelp):
    """The layers of a Transformer. The defaults are those of the paper's base model."""

    name: str = fixed_field("", "Module of tfm.models.")
    d_model: int = size_field(512, "Model width, d_model.")
    d_ff: int = size_field(2048, "Width of the feed-forward networks, d_ff.", most=1 << 20)
    heads: int = fixed_field(8, "Number of attention heads, h.", least=1, most=1024, unit="heads")
    key_features: int | None = size_field(None, "Width of each head's keys, d_k. None is d_model / h.")
    value_features: int | None = size_field(None, "Width of each head's values, d_v. None is d_model / h.")
    key_value_heads: int | None = fixed_field(
        None,
        "Number of key and value heads, each shared by h / key_value_heads query heads. None is h.",
        least=1,
        most=1024,
        unit="heads",
    )
    scale_attention: bool = fixed_field(True, "Division of attention logits by sqrt(d_k).")
    attention_window: int | None = fixed_field(
        None,
        "Number of positions that self-attention sees, centred on the query (r of section 4). None is all.",
        least=1,
        most=1 << 20,
        unit="tokens",
    )
    attention_bias: bool = fixed_field(False, "Biases in the attention projections.")
    activation: str = fixed_field(
        "relu",
        "Activation of the feed-forward networks. gelu is exact, gelu_tanh is the approximation of GPT-2 and "
        "BERT.",
        choices=tuple(ACTIVATIONS),
    )
    gated: bool = fixed_field(
        False, "Gated feed-forward networks: GLU (sigmoid), SwiGLU (swish), GEGLU (gelu), ReGLU (relu)."
    )
    norm: str = fixed_field("layer_norm", "Norm: layer_norm (the paper) or rms_norm.", choices=tuple(NORMS))
    norm_order: str = fixed_field(
        "post",
        "Place of the norm: post (the paper), pre or norm_then_add. The last two also end each stack in a "
        "norm.",
        choices=NORM_ORDERS,
    )
    deep_norm: bool = fixed_field(
        False, "DeepNorm: factors of residual connections and initialization by depth. Needs norm_order post."
    )
    layer_norm_epsilon: float = fixed_field(
        LAYER_NORM_EPSILON,
        "Epsilon added to the variance (LayerNorm) or mean square (RMSNorm). The paper gives no value; the "
        "authors' code uses 1e-6.",
        least=1e-12,
        most=1,
    )
    dropout: float = rate_field(0.1, "Dropout rate of each sublayer's output and of the embeddings, P_drop.")
    attention_dropout: float = rate_field(0.0, "Dropout rate of the attention weights.")
    feed_forward_dropout: float | None = rate_field(
        0.0, "Dropout rate of the hidden feed-forward layer. None is the value of dropout."
    )
    positions: str = fixed_field(
        "interleaved",
        "Positions. Added to embeddings: sinusoids, interleaved (the paper) or concatenated (its authors' "
        "code), or learned (Table 3, row E). In self-attention: rotary, relative_keys (Shaw), relative_bias "
        "(T5) or alibi.",
        choices=POSITIONS,
    )
    attention: str | None = speed_field(
        None,
        "Fused attention kernel, or None. A kernel needs attention_dropout 0 and d_k = d_v; cudnn also needs "
        "bfloat16 and a CUDA device.",
        choices=IMPLEMENTATIONS,
    )
    remat: bool = speed_field(
        False, "Recomputation of a layer's activations in the backward pass. Saves memory and costs time."
    )
    scan: bool = speed_field(
        False,
        "One compiled layer for each stack instead of N. Compiles stacks of 16 or more layers faster. With 6 "
        "layers it saves no time, and steps are slower.",
    )
    dtype: str = field(
        "float32",
        "Compute dtype. Parameters, softmax and norms are float32. On a CPU, training in bfloat16 is faster "
        "than in float32 with oneDNN, but decoding in bfloat16 is slower.",
        choices=("float32", "bfloat16"),
    )

    def __post_init__(self):
        check_fields(self, "model")
        for problem in self._problems():
            raise UserError(problem)

    def _problems(self):
        """Yields an error message for each combination of fields that does not fit together."""
        key_features = self.key_features or self.d_model // self.heads
        if self.d_model % 2 and self.positions in LAYOUTS:
            yield f"model.d_model must be even for sinusoidal positions, got {self.d_model}."
        if None in (self.key_features, self.value_features) and self.d_model % self.heads:
            yield (
                f"model.d_model {self.d_model} does not divide into {self.heads} heads: choose another "
                "number of heads, or set model.key_features and model.value_features."
            )
        if self.deep_norm and self.norm_order != "post":
            yield f"model.deep_norm needs model.norm_order 'post', got {self.norm_order!r}."
        if key_features % 2 and self.positions == "rotary":
            yield (
                f"model.positions 'rotary' needs even key features, got {key_features}: set "
                "model.key_features."
            )
        if self.heads % (self.key_value_heads or 1):
            yield f"model.key_value_heads must divide model.heads {self.heads}, got {self.key_value_heads}."
        if self.attention == "cudnn" and self.positions in BIAS_POSITIONS:
            yield (
                "model.attention 'cudnn' is not for positions that add to the logits, got model.positions "
                f"{self.positions!r}: choose other positions, or model.attention None or 'xla'."
            )
        reason = unsupported_reason(
            self.attention,
            key_features=key_features,
            value_features=self.value_features or self.d_model // self.heads,
            dropout_rate=self.attention_dropout,
            dtype=self.dtype,
        )
        if reason:
            yield f"model.attention {self.attention!r} {reason}; change that, or model.attention."


@dataclasses.dataclass(frozen=True)
class SequenceConfig(BlockConfig):
    """The layers of a Transformer over sequences of tokens."""

    max_positions: int = fixed_field(
        1024, "Maximum sequence length with learned positions.", least=1, most=1 << 20, unit="tokens"
    )

    @property
    def max_length(self) -> int | None:
        """Maximum sequence length where positions are learned; None for no limit."""
        return self.max_positions if self.positions == "learned" else None
