"""Recurrent encoder and decoder with attention (Bahdanau et al. 2015, "RNNsearch"), and its relatives.

The defaults of `RNNConfig` are that paper's; `tfm.models.rnn_luong` has those of Luong et al. 2015.

Shape letters as in `tfm.layers`; E features of an embedding, A of an annotation (a state of the encoder, of
both directions), F of a state, O of the output layer.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from tfm import layers
from tfm.errors import UserError
from tfm.fields import NEVER, check_fields, field
from tfm.layers.parameter_axes import declare_axes
from tfm.layers.recurrent import (
    SCORES,
    GRUCell,
    Initializers,
    LSTMCell,
    RecurrentLayer,
    ScoredAttention,
    State,
    output_of,
    segment_begins,
    select_state,
)
from tfm.masks import padding_mask, segment_mask
from tfm.memory_estimate import FLOAT32, ITEM_SIZES
from tfm.search.state import gather_beams

PAD_ID = 0
CELLS = ("gru", "lstm")
fixed_field = functools.partial(field, resume=NEVER, warm_start=False)
features_field = functools.partial(fixed_field, least=1, most=65_536, unit="features")


def _uniform(key, shape, dtype=jnp.float32):
    """Luong et al. 2015, section 4.1: each parameter from [-0.1, 0.1]."""
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
class RNNConfig:
    """The model of Bahdanau et al. 2015, "RNNsearch"; each default is theirs, each deviation a field."""

    name: str = fixed_field("rnn_seq2seq", "A module of tfm.models.")
    cell: str = fixed_field(
        "gru", "gru, whose reset comes before U (Cho et al. 2014), or lstm.", choices=CELLS
    )
    layers: int = fixed_field(1, "Of the encoder, and of the decoder.", least=1, most=1000, unit="layers")
    bidirectional: bool = fixed_field(True, "Each encoder layer reads in both directions.")
    embedding_features: int = features_field(620, "E, of each token.")
    hidden_features: int = features_field(1000, "F, of each state.")
    initial_state: str = fixed_field(
        "projected",
        "The decoder begins with the state that the encoder has after its last position (of two directions "
        "the backward one's), layer by layer: projected, tanh(W h), or copied.",
        choices=("projected", "copied"),
    )
    attention: str = fixed_field(
        "additive",
        "The score of attention; general and dot are Luong et al. 2015's, as is additive by the name of "
        "concat. With none the decoder gets nothing of the source but its initial state.",
        choices=(*SCORES, "none"),
    )
    attention_features: int = features_field(1000, "Of the additive score's hidden layer.")
    query: str = fixed_field(
        "previous",
        "The decoder's state that attends: previous, before the step, whose context is an input of the step; "
        "or current, after it.",
        choices=("previous", "current"),
    )
    input_feeding: bool = fixed_field(
        False, "The features of the output are an input of the next step (Luong et al. 2015, section 3.3)."
    )
    output: str = fixed_field(
        "maxout",
        "The layer before the logits: maxout of state, embedding and context, the same linear; or tanh of "
        "context and state (Luong et al. 2015, equation 5).",
        choices=("maxout", "linear", "tanh"),
    )
    output_state: str = fixed_field(
        "previous",
        "The decoder's state in that layer: previous (appendix A.2.2) or current (equation 4).",
        choices=("previous", "current"),
    )
    output_features: int = features_field(500, "O, of that layer.")
    share_embeddings: bool = fixed_field(False, "One table embeds source and target.")
    tie_output: bool = fixed_field(False, "The table of the target's embeddings makes the logits too.")
    initialization: str = fixed_field(
        "bahdanau",
        "bahdanau: normal of deviation 0.01, of attention 0.001, orthogonal recurrent matrices. uniform: all "
        "from -0.1 to 0.1 (Luong et al. 2015). glorot: Glorot's, and orthogonal recurrent matrices.",
        choices=tuple(INITIALIZATIONS),
    )
    forget_bias: float = fixed_field(0.0, "Added to the forget gate of an LSTM.", least=-10, most=10)
    dropout: float = field(
        0.0,
        "Of each layer's input and of the output's features (Zaremba et al. 2014).",
        least=0,
        most=0.999,
    )
    dtype: str = field(
        "float32",
        "Of the computation; parameters and softmax are float32.",
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
        if self.forget_bias and self.cell != "lstm":
            raise UserError(f"model.forget_bias is of an LSTM, but model.cell is {self.cell!r}: set it to 0.")

    @property
    def max_length(self) -> None:
        """No limit to the tokens of a sequence."""
        return None

    @property
    def annotation_features(self) -> int:
        """A."""
        return self.hidden_features * (2 if self.bidirectional else 1)

    @property
    def state_arrays(self) -> int:
        """How many arrays [..., F] the state of a cell has."""
        return 2 if self.cell == "lstm" else 1


@dataclasses.dataclass(frozen=True)
class RecurrentMemory:
    """The `tfm.memory_estimate.MemoryEstimate` of a recurrent model.

    Attributes:
      config: `RNNConfig`.
      vocabulary_size: V.
    """

    config: RNNConfig
    vocabulary_size: int

    def count_parameters(self) -> int:
        """The number of parameters, exact."""
        model = self.config
        embedding, states, output = model.embedding_features, model.hidden_features, model.output_features
        annotations = model.annotation_features
        context = annotations if model.attention != "none" else 0
        step_input = embedding + context * (model.query == "previous") + output * model.input_feeding
        read = (context + states) if model.output == "tanh" else (states + embedding + context + 1)
        scores = {
            "additive": (states + annotations + 1) * model.attention_features,
            "general": annotations * states,
        }
        tables = embedding * (1 if model.share_embeddings else 2) + output * (not model.tie_output)
        total = self.vocabulary_size * tables + scores.get(model.attention, 0)
        total += read * output * (2 if model.output == "maxout" else 1)
        total += self._count_cells(step_input, states)
        total += self._count_cells(embedding, annotations) * (2 if model.bidirectional else 1)
        if model.initial_state == "projected":
            total += model.layers * model.state_arrays * (states + 1) * states
        return total

    def sizes(self) -> dict[str, int]:
        """{config field: value} of what makes the parameters many."""
        model = self.config
        names = ["layers", "embedding_features", "hidden_features", "output_features"]
        names += ["attention_features"] * (model.attention == "additive")
        sizes = {f"model.{name}": getattr(model, name) for name in names}
        return {"data.vocabulary_size": self.vocabulary_size, **sizes}

    def layers(self) -> dict[str, int]:
        """{config field: number of layers}, of the encoder's directions and of the decoder."""
        return {"model.layers": self.config.layers * (3 if self.config.bidirectional else 2)}

    def decoding_bytes(
        self, *, rows: int, source: int, length: int, width: int, sampling: bool = False
    ) -> int:
        """Bytes beside the weights that the search of one batch takes.

        The encoder's arrays; the states of W hypotheses before and after a reordering; what is kept of each
        (tokens, coverage); the hidden layer of the additive score [B, W, M, features]; logits [B, W, V].

        Args:
          rows, source, length, width: B, M, T and W.
          sampling: whether tokens are sampled, which takes float32 copies of the logits.
        """
        model, hypotheses, item = self.config, rows * width, self._item()
        states = 2 * hypotheses * model.layers * model.state_arrays * model.hidden_features * item
        kept = hypotheses * (6 * length + 2 * source) * FLOAT32
        scores = hypotheses * source * (2 + self._score_features()) * FLOAT32
        logits = hypotheses * self.vocabulary_size * (3 * FLOAT32 if sampling else 2 * item)
        return self._encoder_bytes(rows, source) + states + kept + scores + logits

    def scoring_bytes(self, *, rows: int, source: int, target: int, chunk: int) -> int:
        """Bytes beside the weights of a forward pass over given pairs.

        The encoder's arrays; first states, embeddings and features of all target positions, attention
        weights [B, L, M]; float32 logits [chunk, V].

        Args:
          rows, source, target: B, M and L.
          chunk: target positions whose logits are held at a time.
        """
        model = self.config
        features = model.embedding_features + model.output_features
        features += 2 * model.layers * model.state_arrays * model.hidden_features
        passed = rows * target * (features + 2 * source) * FLOAT32
        scores = rows * source * self._score_features() * FLOAT32
        logits = 2 * min(max(chunk, rows), rows * target) * self.vocabulary_size * FLOAT32
        return self._encoder_bytes(rows, source) + passed + scores + logits

    def _count_cells(self, first, later):
        """Parameters of a stack of cells whose inputs have `first` and `later` features."""
        model = self.config
        gates = 4 if model.cell == "lstm" else 3
        inputs = first + (model.layers - 1) * later + model.layers * (model.hidden_features + 1)
        return gates * model.hidden_features * inputs

    def _encoder_bytes(self, rows, source):
        """Embeddings, the states of all layers and both directions, annotations and their keys."""
        model = self.config
        states = (model.layers * model.state_arrays + 2) * model.annotation_features
        features = model.embedding_features + states + self._score_features()
        return rows * source * features * self._item()

    def _score_features(self):
        return self.config.attention_features if self.config.attention == "additive" else 0

    def _item(self):
        return ITEM_SIZES[self.config.dtype]


class Encoded(NamedTuple):
    """What the decoder gets of a source.

    Attributes:
      annotations: [B, M, A], the top layer's states.
      keys: [B, M, K], what the attention's score makes of them.
      states: for each layer the states [B, M, F] of the direction that gives the decoder its initial one.
    """

    annotations: jax.Array
    keys: jax.Array
    states: tuple[State, ...]


@flax.struct.dataclass
class RecurrentCache:
    """The state of decoding between two positions.

    Attributes:
      annotations, keys: as in `Encoded`, once for all W hypotheses.
      memory_mask: bool [B, 1, 1, M], which source positions are tokens.
      carry: what goes from step to step, see `DecoderStep`; leaves [B, W, ...].
      coverage: float32 [B, W, M], attention of each hypothesis to each source position so far, summed.
    """

    annotations: jax.Array
    keys: jax.Array
    memory_mask: jax.Array
    carry: Any
    coverage: jax.Array

    def add_coverage(self, weights: jax.Array) -> "RecurrentCache":
        """The cache with attention weights [B, W, M] of one more position added to `coverage`."""
        return self.replace(coverage=self.coverage + weights)

    def reorder(self, parents: jax.Array) -> "RecurrentCache":
        """The cache of hypotheses that continue `parents`, int32 [B, W]."""
        carry, coverage = gather_beams((self.carry, self.coverage), parents)
        return self.replace(carry=carry, coverage=coverage)


@declare_axes(
    {
        f"{name}/table": ("vocabulary", "model")
        for name in ("source_embedding", "target_embedding", "output_table")
    }
)
class Table(nn.Module):
    """A vector for each token, [V, D]."""

    vocabulary_size: int
    features: int
    initialize: Any

    def setup(self) -> None:
        self.table = self.param("table", self.initialize, (self.vocabulary_size, self.features))

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """[...] -> [..., D]."""
        return jnp.take(self.table, tokens, axis=0)


class Encoder(nn.Module):
    """Stacked recurrent layers over the source, each in one direction or both."""

    config: RNNConfig

    def setup(self) -> None:
        config = self.config
        self.forward = [RecurrentLayer(make_cell(config)) for _ in range(config.layers)]
        if config.bidirectional:
            self.backward = [RecurrentLayer(make_cell(config), reverse=True) for _ in range(config.layers)]
        self.dropout = layers.Dropout(config.dropout)

    def __call__(
        self, x: jax.Array, segments: jax.Array, *, train: bool
    ) -> tuple[jax.Array, tuple[State, ...]]:
        """x [B, M, E], segments [B, M] -> annotations [B, M, A] and each layer's states, see `Encoded`."""
        found = []
        for number, forward in enumerate(self.forward):
            x = self.dropout(x, train=train)
            states = forward(x, segments)
            outputs = [output_of(states)]
            if self.config.bidirectional:
                states = self.backward[number](x, segments)
                outputs.append(output_of(states))
            x = jnp.concatenate(outputs, axis=-1)
            found.append(states)
        return x, tuple(found)


class DecoderStep(nn.Module):
    """One position of the decoder.

    What goes from step to step is (states, fed): the state [B, W, F] of each layer, and the features
    [B, W, O] of the last output, None without input feeding.
    """

    config: RNNConfig

    def setup(self) -> None:
        config = self.config
        parts, dtype = INITIALIZATIONS[config.initialization], jnp.dtype(config.dtype)
        self.cells = [make_cell(config) for _ in range(config.layers)]
        if config.attention != "none":
            self.attention = ScoredAttention(
                config.attention, config.hidden_features, config.attention_features, parts, dtype
            )
        self.output = nn.Dense(
            config.output_features * (2 if config.output == "maxout" else 1),
            use_bias=config.output != "tanh",
            kernel_init=parts.kernel,
            bias_init=parts.bias,
            dtype=dtype,
        )
        if config.initial_state == "projected":
            # Of an LSTM, memory and output have each their own.
            self.initial = [
                nn.Dense(config.hidden_features, kernel_init=parts.kernel, bias_init=parts.bias, dtype=dtype)
                for _ in range(config.layers * (2 if config.cell == "lstm" else 1))
            ]
        self.dropout = layers.Dropout(config.dropout)

    def keys(self, annotations: jax.Array) -> jax.Array:
        """What the attention computes once for annotations [B, M, A]: [B, M, K]."""
        return annotations if self.config.attention == "none" else self.attention.keys(annotations)

    def initial_states(self, states: tuple[State, ...]) -> tuple[State, ...]:
        """The decoder's first states from those [..., F] of the encoder."""
        if self.config.initial_state == "copied":
            return states
        arrays, structure = jax.tree.flatten(states)
        projected = [jnp.tanh(project(x)) for project, x in zip(self.initial, arrays, strict=True)]
        return jax.tree.unflatten(structure, projected)

    def first_fed(self, shape: tuple[int, ...]) -> jax.Array | None:
        """Zeros [*shape, O], what the first step is fed; None without input feeding."""
        if not self.config.input_feeding:
            return None
        return jnp.zeros((*shape, self.config.output_features), jnp.dtype(self.config.dtype))

    def __call__(
        self, carry: Any, x: jax.Array, encoded: Encoded, mask: jax.Array, *, train: bool
    ) -> tuple[Any, tuple[jax.Array, jax.Array | None]]:
        """One step of W hypotheses.

        Args:
          carry: (states, fed), see above.
          x: [B, W, E], embeddings of the last tokens.
          encoded: annotations and keys of the source.
          mask: bool [B, 1 or W, M], the source positions that each may attend to.
          train: turns dropout on.

        Returns:
          The next carry, and (features of the output [B, W, O], attention weights [B, W, M] or None).
        """
        config, (states, fed) = self.config, carry
        before, context, weights = output_of(states[-1]), None, None
        if config.attention != "none" and config.query == "previous":
            context, weights = self.attention(before, encoded.keys, encoded.annotations, mask)
        states = self._run_cells(states, _joined(x, context, fed), train)
        after = output_of(states[-1])
        if config.attention != "none" and config.query == "current":
            context, weights = self.attention(after, encoded.keys, encoded.annotations, mask)
        state = before if config.output_state == "previous" else after
        features = self._read_out(state, x, context)
        features = self.dropout(features, train=train)
        return (states, features if config.input_feeding else None), (features, weights)

    def _run_cells(self, states, x, train):
        """The states of all layers after an input [B, W, ...]."""
        found = []
        for cell, state in zip(self.cells, states, strict=True):
            state, x = cell(state, self.dropout(x, train=train))
            found.append(state)
        return tuple(found)

    def _read_out(self, state, x, context):
        """[B, W, O]: t of appendix A.2.2, or the attentional vector of Luong et al. 2015, equation 5."""
        if self.config.output == "tanh":
            return jnp.tanh(self.output(_joined(context, state)))
        features = self.output(_joined(state, x, context))
        if self.config.output == "linear":
            return features
        return features.reshape(*features.shape[:-1], -1, 2).max(-1)


class RNNSeq2Seq(nn.Module):
    """Recurrent sequence-to-sequence model, a `tfm.decoding.protocol.SequenceToSequence`.

    Attributes:
      config: every choice, see `RNNConfig`.
      vocabulary_size: V, of source and target.
    """

    config: RNNConfig
    vocabulary_size: int

    @property
    def memory_estimate(self) -> RecurrentMemory:
        """Its bytes, by arithmetic."""
        return RecurrentMemory(self.config, self.vocabulary_size)

    def setup(self) -> None:
        config = self.config
        initialize = INITIALIZATIONS[config.initialization].table
        table = functools.partial(Table, self.vocabulary_size, initialize=initialize)
        self.target_embedding = table(config.embedding_features)
        if not config.share_embeddings:
            self.source_embedding = table(config.embedding_features)
        if not config.tie_output:
            self.output_table = table(config.output_features)
        self.encoder = Encoder(config)
        self.decoder = DecoderStep(config)

    def __call__(
        self, inputs: jax.Array, targets: jax.Array, *, train: bool, **packing: jax.Array | None
    ) -> jax.Array:
        """Logits [B, L, V] of each next target token, in the compute dtype; arguments as in `features`."""
        x, table = self.features(inputs, targets, train=train, **packing)
        return self._logits(x, table)

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
        """Features of the output and output table, whose product is the logits of each next target token.

        Args:
          inputs: int [B, M] source tokens, 0 is padding.
          targets: int [B, L] decoder input: the target shifted right, beginning with BOS.
          input_positions, target_positions: not used; the order is enough.
          input_segments, target_segments: [B, M] and [B, L], for rows packed with several sentences; 0 is
            padding. All states restart with each segment. When None each row is one sentence, padded with
            token 0.
          train: turns dropout on.

        Returns:
          x [B, L, O] in the compute dtype and the table [V, O]; the logits are x @ table.T.
        """
        if input_segments is None:
            input_segments = (inputs != PAD_ID).astype(jnp.int32)
        if target_segments is None:
            target_segments = jnp.ones_like(targets)
        encoded = self.encode(inputs, segments=input_segments, train=train)
        last = last_read(target_segments, input_segments, backwards=self.config.bidirectional)
        first = jax.tree.map(lambda x: jnp.take_along_axis(x, last[..., None], axis=1), encoded.states)
        first = self.decoder.initial_states(first)  # [B, L, F], of the segment of each position
        x = self._embed(self.target_embedding, targets)
        x, weights = self._run_decoder(
            x,
            encoded,
            first,
            segment_begins(target_segments),
            segment_mask(target_segments, input_segments)[:, 0],
            train=train,
        )
        if weights is not None and not self.is_initializing():
            self.sow("attention", "source", weights)
        return x, self._output_table

    def _run_decoder(self, x, encoded, first, begins, mask, *, train):
        """The decoder over all positions.

        Takes x [B, L, E]; the first states [B, L, F]; begins [B, L]; mask [B, L, M]. Returns the features
        [B, L, O] and the attention weights [B, L, M] or None.
        """

        def step(decoder, carry, inputs, encoded):
            (states, fed), (x, first, begins, mask) = carry, inputs
            states = select_state(begins, first, states)
            if fed is not None:
                fed = jnp.where(begins[..., None], 0, fed)
            return decoder((states, fed), x, encoded, mask, train=train)

        scan = nn.scan(
            step,
            variable_broadcast="params",
            split_rngs={"params": False, "dropout": True},
            in_axes=(1, nn.broadcast),
            out_axes=1,
        )
        inputs = jax.tree.map(lambda x: x[:, :, None], (x, first, begins, mask))  # one hypothesis: W = 1
        start = jax.tree.map(lambda x: jnp.zeros_like(x[:, 0]), inputs[1])
        carry = start, self.decoder.first_fed((x.shape[0], 1))
        _, found = scan(self.decoder, carry, inputs, encoded._replace(states=()))
        return jax.tree.map(lambda x: x[:, :, 0], found)

    def encode(self, inputs: jax.Array, *, segments: jax.Array | None = None, train: bool = False) -> Encoded:
        """inputs [B, M] -> `Encoded`."""
        segments = (inputs != PAD_ID).astype(jnp.int32) if segments is None else segments
        embedding = self.target_embedding if self.config.share_embeddings else self.source_embedding
        annotations, states = self.encoder(self._embed(embedding, inputs), segments, train=train)
        return Encoded(annotations, self.decoder.keys(annotations), states)

    def init_cache(self, inputs: jax.Array, *, width: int, max_length: int) -> RecurrentCache:
        """Encodes inputs [B, M]: the cache of W = `width` hypotheses, of any length."""
        encoded, segments = self.encode(inputs), (inputs != PAD_ID).astype(jnp.int32)
        ones = jnp.ones((len(inputs), width), jnp.int32)
        last = last_read(ones, segments, backwards=self.config.bidirectional)
        first = jax.tree.map(lambda x: jnp.take_along_axis(x, last[..., None], axis=1), encoded.states)
        return RecurrentCache(
            annotations=encoded.annotations,
            keys=encoded.keys,
            memory_mask=padding_mask(inputs),
            carry=(self.decoder.initial_states(first), self.decoder.first_fed(ones.shape)),
            coverage=jnp.zeros((*ones.shape, inputs.shape[1]), jnp.float32),
        )

    def decode_step(
        self, tokens: jax.Array, cache: RecurrentCache, position: jax.Array
    ) -> tuple[jax.Array, RecurrentCache]:
        """Logits of the next token of each hypothesis.

        Args:
          tokens: int [B, W], the last token of each (BOS at position 0).
          cache: a `RecurrentCache`.
          position: not used; the cache is the state.

        Returns:
          logits [B, W, V] and the cache after this position.
        """
        x, encoded = self._embed(self.target_embedding, tokens), Encoded(cache.annotations, cache.keys, ())
        carry, (x, weights) = self.decoder(cache.carry, x, encoded, cache.memory_mask[:, 0], train=False)
        if weights is not None:
            self.sow("attention", "source", weights)
        return self._logits(x, self._output_table), cache.replace(carry=carry)

    @nn.nowrap
    def source_attention(self, collected: Mapping[str, Any]) -> jax.Array:
        """Attention to the source [1, B, 1, L, M] of what `apply(..., mutable=["attention"])` collected.

        Raises:
          UserError: the model has no attention.
        """
        if self.config.attention == "none":
            raise UserError(
                "Expected attention to the source, but model.attention is 'none': there are no alignments "
                "and no coverage."
            )
        return collected["attention"]["source"][0][None, :, None]

    @nn.nowrap
    def attention_maps(self, collected: Mapping[str, Any]) -> dict[str, jax.Array]:
        """All attention to draw: {"cross": that to the source}, or {} for a model without."""
        return {} if self.config.attention == "none" else {"cross": self.source_attention(collected)}

    def _embed(self, embedding, tokens):
        return embedding(tokens).astype(self.config.dtype)

    @property
    def _output_table(self):
        return self.target_embedding.table if self.config.tie_output else self.output_table.table

    def _logits(self, x, table):
        return x @ table.astype(x.dtype).T


def make_cell(config: RNNConfig) -> nn.Module:
    """A cell of one layer."""
    parts, dtype = INITIALIZATIONS[config.initialization], jnp.dtype(config.dtype)
    if config.cell == "gru":
        return GRUCell(config.hidden_features, parts, dtype)
    return LSTMCell(config.hidden_features, parts, config.forget_bias, dtype)


def last_read(target_segments: jax.Array, input_segments: jax.Array, *, backwards: bool) -> jax.Array:
    """The position of its own source that the encoder reads last, for each target position.

    Args:
      target_segments, input_segments: [B, L] and [B, M].
      backwards: the first position of the segment, not the last.

    Returns:
      int [B, L]; any position for a segment that the source does not have.
    """
    same = target_segments[:, :, None] == input_segments[:, None]
    if backwards:
        return same.argmax(-1)
    return same.shape[-1] - 1 - same[..., ::-1].argmax(-1)


def _joined(*parts):
    """Features [..., D] of those that are not None, one after the other."""
    return jnp.concatenate([part for part in parts if part is not None], axis=-1)


Config = RNNConfig
Model = RNNSeq2Seq
