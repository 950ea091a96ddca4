"""The memory estimate of the recurrent models, computed from their config."""

import dataclasses

from tfm.models.rnn_seq2seq.config import RNNConfig


@dataclasses.dataclass(frozen=True)
class RecurrentMemory:
    """The memory estimate of a recurrent model, a `tfm.memory_estimate.MemoryEstimate`.

    Attributes:
      config: See `RNNConfig`.
      vocabulary_size: Size of the vocabulary, V.
    """

    config: RNNConfig
    vocabulary_size: int

    def count_parameters(self) -> int:
        """Returns the exact number of parameters."""
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
        """Returns {config field: value} for the fields that determine the number of parameters."""
        model = self.config
        names = ["layers", "embedding_features", "hidden_features", "output_features"]
        names += ["attention_features"] * (model.attention == "additive")
        sizes = {f"model.{name}": getattr(model, name) for name in names}
        return {"data.vocabulary_size": self.vocabulary_size, **sizes}

    def layers(self) -> dict[str, int]:
        """Returns {config field: number of layers}. Each direction of an encoder layer counts as a layer."""
        return {"model.layers": self.config.layers * (3 if self.config.bidirectional else 2)}

    def _count_cells(self, input_features: int, layer_features: int) -> int:
        """Returns the number of parameters of a stack of cells.

        Args:
          input_features: Width of the input of the first layer.
          layer_features: Width of the input of every other layer.
        """
        model = self.config
        gates = 4 if model.cell == "lstm" else 3
        inputs = input_features + (model.layers - 1) * layer_features
        inputs += model.layers * (model.hidden_features + 1)
        return gates * model.hidden_features * inputs
