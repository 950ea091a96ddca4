"""The memory of a recurrent model, by arithmetic on its config."""

import dataclasses

from tfm.memory_estimate import FLOAT32, ITEM_SIZES
from tfm.models.rnn_seq2seq.config import RNNConfig


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
            final_states = states * len(model.initial_directions)
            total += model.layers * model.state_arrays * (final_states + 1) * states
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
