"""The choices of a recurrent model, and its initializations."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.errors import UserError
from tfm.fields import NEVER, InheritsHelp, check_fields, field
from tfm.models.rnn_seq2seq.cells import SCORES, Initializers

CELLS = ("gru", "lstm")
fixed_field = functools.partial(field, resume=NEVER, warm_start=False)
features_field = functools.partial(fixed_field, least=1, most=65_536, unit="features")


def _uniform(key, shape, dtype=jnp.float32):
    """Draws parameters from [-0.1, 0.1] (Luong et al. 2015, section 4.1)."""
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
    """The model of Bahdanau et al. 2015, "RNNsearch". The defaults are those of the paper."""

    name: str = fixed_field("rnn_seq2seq", "Module of tfm.models.")
    cell: str = fixed_field(
        "gru", "Cell: gru, with the reset gate before U (Cho et al. 2014), or lstm.", choices=CELLS
    )
    layers: int = fixed_field(
        1, "Number of layers of the encoder and of the decoder.", least=1, most=1000, unit="layers"
    )
    bidirectional: bool = fixed_field(True, "Encoder layers that read in both directions.")
    embedding_features: int = features_field(620, "Width of the embeddings, E.")
    hidden_features: int = features_field(1000, "Width of the states, F.")
    initial_state: str = fixed_field(
        "projected",
        "First state of each decoder layer, made from the final state h of the encoder layer: projected "
        "(tanh(W h)) or copied. With a bidirectional encoder, h is the final state of the backward "
        "direction. Without attention, h contains both directions and must be projected.",
        choices=("projected", "copied"),
    )
    attention: str = fixed_field(
        "additive",
        "Score of the attention: additive (called concat by Luong et al. 2015), general, dot (both of Luong "
        "et al. 2015) or none. With none, the decoder knows only its initial state of the source.",
        choices=(*SCORES, "none"),
    )
    attention_features: int = features_field(1000, "Width of the hidden layer of the additive score.")
    query: str = fixed_field(
        "previous",
        "Decoder state that attends: previous (before the step, so the context is an input of the step) or "
        "current (after the step).",
        choices=("previous", "current"),
    )
    input_feeding: bool = fixed_field(
        False, "Output features as an input of the next step (Luong et al. 2015, section 3.3)."
    )
    output: str = fixed_field(
        "maxout",
        "Layer before the logits: maxout or linear, of state, embedding and context, or tanh, of context and "
        "state (Luong et al. 2015, equation 5).",
        choices=("maxout", "linear", "tanh"),
    )
    output_state: str = fixed_field(
        "previous",
        "Decoder state that the output layer reads: previous (appendix A.2.2) or current (equation 4).",
        choices=("previous", "current"),
    )
    output_features: int = features_field(500, "Width of the output layer, O.")
    share_embeddings: bool = fixed_field(False, "One embedding table for source and target.")
    tie_output: bool = fixed_field(False, "One table for the target embedding and the logits.")
    initialization: str = fixed_field(
        "bahdanau",
        "Initialization. bahdanau: normal with deviation 0.01 (0.001 in the attention) and orthogonal "
        "recurrent matrices. uniform: from -0.1 to 0.1 (Luong et al. 2015). glorot: Glorot uniform and "
        "orthogonal recurrent matrices.",
        choices=tuple(INITIALIZATIONS),
    )
    forget_bias: float = fixed_field(0.0, "Constant added to the forget gate of an LSTM.", least=-10, most=10)
    dropout: float = field(
        0.0,
        "Dropout rate of each layer's input and of the output features (Zaremba et al. 2014).",
        least=0,
        most=0.999,
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
                "model.tie_output needs as many features of the output as of an embedding: got "
                f"model.output_features {self.output_features} and model.embedding_features "
                f"{self.embedding_features}."
            )
        if self.attention == "dot" and self.bidirectional:
            raise UserError(
                "model.attention 'dot' needs annotations as wide as the decoder's state, and those of both "
                "directions are twice as wide: set model.bidirectional=False, or model.attention='general'."
            )
        if self.initial_state == "copied" and len(self.initial_directions) > 1:
            raise UserError(
                "Expected model.initial_state 'projected', got 'copied'. With model.attention='none', the "
                "decoder begins with the states of both directions, which are twice as wide as its own. "
                "Set model.initial_state='projected' or model.bidirectional=False."
            )
        if self.forget_bias and self.cell != "lstm":
            raise UserError(
                f"Only an LSTM has a forget gate, but model.cell is {self.cell!r}. Set model.forget_bias=0."
            )

    @property
    def max_length(self) -> None:
        """Returns None: recurrent models accept sequences of any length."""
        return None

    @property
    def initial_directions(self) -> tuple[str, ...]:
        """Returns the directions of the encoder whose final states begin the decoder.

        Attention reads both directions. The backward direction, which has just read the first word, begins
        the decoder (Bahdanau et al. 2015, appendix A.2.2). Without attention nothing else would read the
        forward direction of the top layer.
        """
        if not self.bidirectional:
            return ("forward",)
        return ("forward", "backward") if self.attention == "none" else ("backward",)

    @property
    def annotation_features(self) -> int:
        """Width of the encoder's annotations, A."""
        return self.hidden_features * (2 if self.bidirectional else 1)

    @property
    def state_arrays(self) -> int:
        """Number of arrays [..., F] in the state of a cell."""
        return 2 if self.cell == "lstm" else 1
