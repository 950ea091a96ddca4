"""The config of Transformer layers. The configs of models inherit from it.

The config of a model adds fields, and changes a default by assigning another value to the field:

    @dataclasses.dataclass(frozen=True)
    class DecoderLMConfig(SequenceConfig):
        layers: int = fixed_field(12, "Number of layers, N.", minimum=1, maximum=1000, unit="layers")
        d_model: int = 768  # keeps the help and the allowed values of BlockConfig
"""

import dataclasses
import functools
from collections.abc import Iterator

import jax

from tfm.attention_kernels import IMPLEMENTATIONS, unsupported_reason
from tfm.config import InheritsHelp, OnResume, check_fields, field
from tfm.dropout import STEPS
from tfm.errors import UserError
from tfm.layers.feed_forward import ACTIVATIONS
from tfm.layers.position_terms import BIAS_POSITIONS, POSITIONS, ROTARY_POSITIONS, SINUSOIDAL_POSITIONS
from tfm.layers.residual import LAYER_NORM_EPSILON, NORM_ORDERS, NORMS

# A resumed run and a warm start must not change these fields, because the shapes or the meaning of the
# parameters depend on them.
fixed_field = functools.partial(field, resume=OnResume.FIXED, warm_start=False)
name_field = functools.partial(
    fixed_field, help="Name of a module in tfm.models, or package.module:attribute of your own."
)
size_field = functools.partial(fixed_field, minimum=1, maximum=65_536, unit="features")
# Dropout at a rate near 1 would zero almost all elements, so a larger rate is probably a mistake.
rate_field = functools.partial(field, minimum=0, maximum=0.999)
speed_field = functools.partial(field, resume=OnResume.FREE)


@dataclasses.dataclass(frozen=True)
class BlockConfig(InheritsHelp):
    """The config of the layers of a Transformer. The defaults describe the paper's base model.

    Raises:
      UserError: If a value is not allowed, or if values do not fit together.
    """

    name: str = name_field("")
    d_model: int = size_field(512, "Model width, d_model.")
    d_ff: int = size_field(2048, "Width of the feed-forward networks, d_ff.", maximum=1 << 20)
    heads: int = fixed_field(8, "Number of attention heads, h.", minimum=1, maximum=1024, unit="heads")
    key_features: int | None = size_field(
        None, "Width of each head's queries and keys, d_k. None means d_model / h."
    )
    value_features: int | None = size_field(None, "Width of each head's values, d_v. None means d_model / h.")
    key_value_heads: int | None = fixed_field(
        None,
        "Number of key and value heads. h / key_value_heads query heads share each of them. None means h.",
        minimum=1,
        maximum=1024,
        unit="heads",
    )
    scale_attention: bool = fixed_field(True, "Division of the attention logits by sqrt(d_k).")
    attention_window: int | None = fixed_field(
        None,
        "Number of positions around each query that self-attention sees (r in section 4). None means all "
        "positions.",
        minimum=1,
        maximum=1 << 20,
        unit="tokens",
    )
    attention_bias: bool = fixed_field(False, "Biases in the attention projections.")
    activation: str = fixed_field(
        "relu",
        "Activation function of the feed-forward networks. gelu is exact. gelu_tanh is the approximation of "
        "GPT-2 and BERT.",
        choices=tuple(ACTIVATIONS),
    )
    gated: bool = fixed_field(
        False,
        "Gate in the feed-forward networks. It makes them GLU (with activation sigmoid), SwiGLU (swish), "
        "GEGLU (gelu) or ReGLU (relu).",
    )
    feed_forward_kernel: int = fixed_field(
        1,
        "Width of the two convolutions of the feed-forward networks. 1 is equation 2. In a decoder, a "
        "position sees itself and earlier positions. Elsewhere, it is in the centre, and an even width has "
        "one more position before it than after it.",
        minimum=1,
        maximum=1024,
        unit="positions",
    )
    norm: str = fixed_field("layer_norm", "Kind of norm. The paper uses layer_norm.", choices=tuple(NORMS))
    norm_order: str = fixed_field(
        "post",
        "Place of the norm: post (after the sum of input and sublayer, as in the paper), pre (before the "
        "sublayer) or norm_then_add (after the sublayer, before the sum). The last two also add a norm at "
        "the end of each stack.",
        choices=NORM_ORDERS,
    )
    deep_norm: bool = fixed_field(
        False,
        "DeepNorm (Wang et al. 2022). Scales residual connections and initial parameters by constants that "
        "depend on the number of layers. Needs norm_order post.",
    )
    layer_norm_epsilon: float = fixed_field(
        LAYER_NORM_EPSILON,
        "Epsilon added to the variance (LayerNorm) or mean square (RMSNorm). The paper gives no value; the "
        "authors' code uses 1e-6.",
        minimum=1e-12,
        maximum=1,
    )
    dropout: float = rate_field(0.1, "Dropout rate of each sublayer's output and of the embeddings, P_drop.")
    attention_dropout: float = rate_field(0.0, "Dropout rate of the attention weights.")
    feed_forward_dropout: float | None = rate_field(
        0.0, "Dropout rate of the hidden layer of the feed-forward networks. None means the value of dropout."
    )
    positions: str = fixed_field(
        "interleaved",
        "Encoding of positions. These are added to the embeddings: sinusoids in the order of the paper "
        "(interleaved) or of its authors' code (concatenated), and learned vectors (Table 3, row E). These "
        "act in self-attention: rotary, relative_keys (Shaw et al. 2018), relative_bias (T5) and alibi. "
        "interleaved_and_rotary does both.",
        choices=POSITIONS,
    )
    first_position: int = fixed_field(
        0, "Sinusoidal position of the first token. M2M-100 uses 2.", minimum=0, maximum=1 << 16
    )
    attention: str | None = speed_field(
        "auto",
        "Implementation of attention. None computes equation 1. auto chooses cudnn where it is possible, "
        "blockwise for other long rows, and otherwise None. All except None need attention_dropout 0. xla "
        "and cudnn need d_k = d_v. cudnn also needs bfloat16 and a CUDA device. The memory of blockwise is "
        "linear in the length.",
        choices=("auto", *IMPLEMENTATIONS),
    )
    remat: bool = speed_field(
        False,
        "Recomputation of each layer's activations in the backward pass. Training needs less memory but more "
        "time.",
    )
    scan: bool = speed_field(
        False,
        "Compilation of one layer that runs N times, instead of N layers. Stacks of 16 or more layers "
        "compile faster. With 6 layers, compilation is not faster and steps are slower.",
    )
    dtype: str = field(
        "float32",
        "Compute dtype. Parameters, softmax and norms are float32. On a CPU, training in bfloat16 is not "
        "faster than in float32, and decoding is slower.",
        choices=("float32", "bfloat16"),
    )

    def __post_init__(self):
        check_fields(self, "model")
        for problem in self._problems():
            raise UserError(problem)

    def _problems(self) -> Iterator[str]:
        """Yields an error message for each combination of fields that is not possible."""
        key_features = self.key_features or self.d_model // self.heads
        if self.d_model % 2 and self.positions in SINUSOIDAL_POSITIONS:
            yield f"model.d_model must be even for sinusoidal positions, got {self.d_model}."
        if None in (self.key_features, self.value_features) and self.d_model % self.heads:
            yield (
                f"Expected model.heads to divide model.d_model ({self.d_model}), got {self.heads}. Choose "
                "another number of heads, or set model.key_features and model.value_features."
            )
        if self.deep_norm and self.norm_order != "post":
            yield f"model.deep_norm needs model.norm_order 'post', got {self.norm_order!r}."
        if key_features % 2 and self.positions in ROTARY_POSITIONS:
            yield (
                f"model.positions {self.positions!r} needs an even width of keys, got {key_features}. Set "
                "model.key_features to an even number."
            )
        if self.heads % (self.key_value_heads or 1):
            yield f"model.key_value_heads must divide model.heads {self.heads}, got {self.key_value_heads}."
        features = key_features, key_features, self.value_features or self.d_model // self.heads
        reason = unsupported_reason(
            None if self.attention == "auto" else self.attention,
            *(jax.ShapeDtypeStruct((1, 2, self.heads, each), self.dtype) for each in features),
            dropout_rate=self.attention_dropout,
        )
        if self.attention in ("cudnn", "blockwise") and self.positions in BIAS_POSITIONS:
            reason = f"does not support model.positions {self.positions!r}, because they add to the logits"
        if reason:
            yield f"model.attention {self.attention!r} {reason}. Change that field, or model.attention."


@dataclasses.dataclass(frozen=True)
class SequenceConfig(BlockConfig):
    """The config of the layers of a Transformer over sequences of tokens."""

    scale_embedding: bool = fixed_field(
        True, "Multiplication of the embeddings by sqrt(d_model), as in the paper."
    )
    embedding_norm: bool = fixed_field(
        False, "Norm of the sum of embeddings and positions, as in BART. The paper has none."
    )
    logits_bias: bool = fixed_field(False, "Bias of the logits, as in Marian. The paper has none.")
    max_positions: int = fixed_field(
        1024,
        "Number of learned positions. It limits the length of a sequence. Other kinds of positions ignore "
        "this field.",
        minimum=1,
        maximum=1 << 20,
        unit="tokens",
    )

    random_start: int = field(
        0,
        "Largest random offset of the positions of a row in training, so that a model sees positions beyond "
        "the length of its rows (Dehghani et al. 2019, section 3.4). 0 begins every row at position 0. "
        "Learned positions need max_positions for the longest row and its offset.",
        minimum=0,
        maximum=STEPS - 1,
        unit="positions",
    )

    @property
    def max_length(self) -> int | None:
        """Maximum number of tokens in a sequence. None means no limit, because positions are not learned."""
        return self.max_positions - self.random_start if self.positions == "learned" else None
