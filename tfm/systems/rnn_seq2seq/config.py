"""The config of the recurrent models, and their initializations."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.config import InheritsHelp, check_fields, field
from tfm.errors import UserError
from tfm.layers.block_config import fixed_field, name_field, rate_field, size_field
from tfm.systems.lstm_lm.cells import Initializers
from tfm.systems.rnn_seq2seq.attention import SCORES

CELLS = ("gru", "lstm")


def _uniform(key, shape, dtype=jnp.float32):
    """Draws parameters uniformly from [-0.1, 0.1] (Luong et al. 2015, section 4.1)."""
    return jax.random.uniform(key, shape, dtype, -0.1, 0.1)


INITIALIZATIONS = {
    # Bahdanau et al. 2015, appendix B.1
    "bahdanau": Initializers(
        kernel=nn.initializers.normal(0.01),
        recurrent=nn.initializers.orthogonal(),
        attention=nn.initializers.normal(0.001),
        score=nn.initializers.zeros,
        bias=nn.initializers.zeros,
        table=nn.initializers.normal(0.01),
    ),
    "uniform": Initializers(*[_uniform] * 6),
    "glorot": Initializers(
        kernel=nn.initializers.glorot_uniform(),
        recurrent=nn.initializers.orthogonal(),
        attention=nn.initializers.glorot_uniform(),
        score=nn.initializers.glorot_uniform(),
        bias=nn.initializers.zeros,
        table=nn.initializers.variance_scaling(1.0, "fan_out", "normal"),
    ),
}


@dataclasses.dataclass(frozen=True)
class RNNConfig(InheritsHelp):
    """The config of a recurrent model. The defaults describe "RNNsearch" (Bahdanau et al. 2015)."""

    name: str = name_field("rnn_seq2seq")
    cell: str = fixed_field(
        "gru",
        "Recurrent cell. The GRU applies the reset gate before the matrix U (Cho et al. 2014).",
        choices=CELLS,
    )
    layers: int = fixed_field(
        1, "Number of layers in the encoder, and in the decoder.", minimum=1, maximum=1000, unit="layers"
    )
    bidirectional: bool = fixed_field(True, "Encoder layers that read the source in both directions.")
    embedding_features: int = size_field(620, "Width of the embeddings, E.")
    hidden_features: int = size_field(1000, "Width of the recurrent states, F.")
    initial_state: str = fixed_field(
        "projected",
        "Initial state of each decoder layer, computed from the final state h of the corresponding encoder "
        "layer: projected (tanh(W h)) or copied. With a bidirectional encoder, h is the final state of the "
        "backward direction. With a bidirectional encoder and attention none, h contains both directions and "
        "must be projected.",
        choices=("projected", "copied"),
    )
    attention: str = fixed_field(
        "additive",
        "Score function of the attention: additive (Bahdanau et al. 2015), general or dot (Luong et al. "
        "2015). With none, the decoder has no attention and sees the source only in its initial state.",
        choices=(*SCORES, "none"),
    )
    attention_features: int = size_field(1000, "Width of the hidden layer of the additive score.")
    query: str = fixed_field(
        "previous",
        "Decoder state that serves as the attention query: previous (the state before the step, so that the "
        "context is an input of the step) or current (the state after the step).",
        choices=("previous", "current"),
    )
    input_feeding: bool = fixed_field(
        False,
        "Feeds the output features back as an input of the next step (Luong et al. 2015, section 3.3).",
    )
    output: str = fixed_field(
        "maxout",
        "Layer before the logits: maxout or linear (they read state, embedding and context), or tanh (it "
        "reads context and state, Luong et al. 2015, equation 5).",
        choices=("maxout", "linear", "tanh"),
    )
    output_state: str = fixed_field(
        "previous",
        "Decoder state that the output layer reads: previous (the state before the step, appendix A.2.2) or "
        "current (the state after the step, equation 4).",
        choices=("previous", "current"),
    )
    output_features: int = size_field(500, "Width of the output layer, O.")
    share_embeddings: bool = fixed_field(False, "One shared embedding table for source and target.")
    tie_output: bool = fixed_field(False, "One shared table for the target embedding and the logits.")
    initialization: str = fixed_field(
        "bahdanau",
        "Initialization of the parameters. bahdanau: normal with standard deviation 0.01 (0.001 in the "
        "attention) and orthogonal recurrent matrices. uniform: from -0.1 to 0.1 (Luong et al. 2015). "
        "glorot: Glorot uniform and orthogonal recurrent matrices.",
        choices=tuple(INITIALIZATIONS),
    )
    forget_bias: float = fixed_field(
        0.0, "Constant added to the forget gate of an LSTM.", minimum=-10, maximum=10
    )
    dropout: float = rate_field(
        0.0, "Dropout rate of each layer's input and of the output features (Zaremba et al. 2014)."
    )
    dtype: str = field(
        "float32",
        "Compute dtype. Parameters and softmax are float32.",
        choices=("float32", "bfloat16"),
    )

    def __post_init__(self):
        check_fields(self, "model")
        if self.tie_output and self.output_features != self.embedding_features:
            raise UserError(
                "model.tie_output needs equal widths of output and embedding, got model.output_features "
                f"{self.output_features} and model.embedding_features {self.embedding_features}. Make them "
                "equal, or set model.tie_output=False."
            )
        if self.attention == "dot" and self.bidirectional:
            raise UserError(
                "model.attention 'dot' needs annotations as wide as the decoder's state, but the annotations "
                "of a bidirectional encoder are twice as wide. Set model.bidirectional=False, or "
                "model.attention='general'."
            )
        if self.initial_state == "copied" and len(self.initial_directions) > 1:
            raise UserError(
                "Expected model.initial_state 'projected', got 'copied'. With model.attention='none', the "
                "initial state of the decoder contains the encoder states of both directions and is too wide "
                "to be copied. Set model.initial_state='projected' or model.bidirectional=False."
            )
        if self.forget_bias and self.cell != "lstm":
            raise UserError(
                f"Only an LSTM has a forget gate, but model.cell is {self.cell!r}. Set model.forget_bias=0."
            )

    @property
    def max_length(self) -> None:
        """Returns None, because recurrent models accept sequences of any length."""
        return None

    @property
    def initial_directions(self) -> tuple[str, ...]:
        """The directions of the encoder whose final states determine the initial state of the decoder.

        With attention, this is the backward direction, because the first word of the source is the last word
        that it reads (Bahdanau et al. 2015, appendix A.2.2). Without attention, these are both directions,
        because otherwise the decoder would not use the forward direction of the top layer.
        """
        if not self.bidirectional:
            return ("forward",)
        return ("forward", "backward") if self.attention == "none" else ("backward",)
