"""The number of parameters of a model and the bytes of its training, computed from its config.

Nothing is traced and nothing is allocated. A model with estimates has the property `memory_estimate`, a
`MemoryEstimate`. `estimate_of` returns None for other models, which are not checked. Sizes are Python
integers, so no config makes one overflow. Decoding needs no estimate, see `tfm.decoding.batches`.
"""

import dataclasses
from typing import Any, Protocol

FLOAT32 = 4
INT32 = 4
BATCH_ARRAYS = 6  # tokens, positions and segments of both sides
BATCHES_HELD = 9  # batches in memory: the current and the prefetched, see `tfm.data.batches.schedule`
RELATIVE_KEYS = 33  # vectors of `tfm.layers.RelativeKeys`
RELATIVE_BUCKETS = 32  # of `tfm.layers.RelativeBias`
# Host bytes for each layer during tracing and compilation. Tracing only the shapes of 100 layers needed
# 51 MiB (CPU, JAX 0.10.2).
LAYER_PROGRAM = 1 << 20


class MemoryEstimate(Protocol):
    """The estimates of a model's memory."""

    def count_parameters(self) -> int:
        """Returns the exact number of parameters."""
        ...

    def sizes(self) -> dict[str, int]:
        """Returns {config field: value} of the fields that determine the number of parameters."""
        ...

    def layers(self) -> dict[str, int]:
        """Returns {config field: number of layers} of the layers that are traced and compiled."""
        ...


def estimate_of(model: Any) -> MemoryEstimate | None:
    """Returns the estimate of a Linen module, or None if it has none."""
    return getattr(model, "memory_estimate", None)


def program_bytes(estimate: MemoryEstimate) -> int:
    """Returns the host bytes to trace and compile a model. The width of its layers does not matter."""
    return LAYER_PROGRAM * sum(estimate.layers().values())


def training_bytes(parameters: int, training: Any) -> int:
    """Returns the minimum bytes of one device for parameters and gradients.

    A run checks the exact size of its state, with optimizer and average, when the shapes are traced.

    Args:
      parameters: number of parameters.
      training: a `TrainingConfig`. The mesh axes "fsdp" and "tensor" divide all these bytes.
    """
    copies = 1 if training.freeze else 2  # frozen parameters have no gradients
    sharers = training.mesh_fsdp * training.mesh_tensor if training.parallel in ("mesh", "auto") else 1
    return parameters * copies * FLOAT32 // sharers


def batches_bytes(tokens: int) -> int:
    """Returns the host bytes of all batches in memory, with `tokens` tokens on each side of a batch."""
    return BATCHES_HELD * BATCH_ARRAYS * INT32 * tokens


@dataclasses.dataclass(frozen=True)
class TransformerMemory:
    """The `MemoryEstimate` of the encoder-decoder Transformer.

    Attributes:
      config: a `tfm.models.TransformerConfig`.
      vocabulary_size: V, tokens.
    """

    config: Any
    vocabulary_size: int

    def count_parameters(self) -> int:
        """Returns the exact number of parameters."""
        model, d_model = self.config, self.config.d_model
        attention, feed_forward, norm = self._sublayers()
        positions = self._bias_parameters()
        encoder = model.encoder_layers * (attention + positions + feed_forward + 2 * norm)
        decoder = model.decoder_layers * (2 * attention + positions + feed_forward + 3 * norm)
        final_norms = 0 if model.norm_order == "post" else 2 * norm
        tables = {"three": 1, "two": 2, "none": 3}[model.tied_embeddings] * self.vocabulary_size * d_model
        if model.positions == "learned":
            tables += 2 * model.max_positions * d_model
        return encoder + decoder + final_norms + tables

    def sizes(self) -> dict[str, int]:
        """Returns {config field: value} of the fields that determine the number of parameters."""
        model = self.config
        names = [name.removeprefix("model.") for name in self.layers()] + ["d_model", "d_ff", "heads"]
        names += [name for name in ("key_features", "value_features") if getattr(model, name)]
        if model.positions == "learned":
            names.append("max_positions")
        sizes = {f"model.{name}": getattr(model, name) for name in names}
        return {"data.vocabulary_size": self.vocabulary_size, **sizes}

    def layers(self) -> dict[str, int]:
        """Returns {config field: number of layers}."""
        model = self.config
        return {"model.encoder_layers": model.encoder_layers, "model.decoder_layers": model.decoder_layers}

    def _sublayers(self):
        """Returns the parameters of one attention, one feed-forward network and one norm."""
        model = self.config
        d_model, d_ff = model.d_model, model.d_ff
        keys, values = self._head_features()
        cached = sum(self._cached_features())
        attention = d_model * (keys + cached + values)
        if model.attention_bias:
            attention += keys + cached + d_model
        feed_forward = (1 + model.gated) * (d_model + 1) * d_ff + (d_ff + 1) * d_model
        return attention, feed_forward, d_model * (1 if model.norm == "rms_norm" else 2)

    def _bias_parameters(self):
        """Returns the parameters of the relative positions of one self-attention."""
        model = self.config
        if model.positions == "relative_keys":
            return RELATIVE_KEYS * (self._head_features()[0] // model.heads)
        return RELATIVE_BUCKETS * model.heads if model.positions == "relative_bias" else 0

    def _head_features(self):
        """Returns (H * K, H * V)."""
        model = self.config
        own = model.d_model // model.heads
        return model.heads * (model.key_features or own), model.heads * (model.value_features or own)

    def _cached_features(self):
        """Returns (G * K, G * V), the features of keys and values."""
        shared = self.config.heads // (self.config.key_value_heads or self.config.heads)
        return tuple(features // shared for features in self._head_features())


class DecoderMemory(TransformerMemory):
    """The `MemoryEstimate` of a decoder without an encoder; P tokens of a prefix take the place of a source.

    Attributes:
      config: a `tfm.models.decoder_lm.DecoderLMConfig`.
      vocabulary_size: V, tokens.
    """

    def count_parameters(self) -> int:
        """Returns the exact number of parameters."""
        model, d_model = self.config, self.config.d_model
        attention, feed_forward, norm = self._sublayers()
        stack = model.layers * (attention + self._bias_parameters() + feed_forward + 2 * norm)
        final_norm = 0 if model.norm_order == "post" else norm
        positions = model.max_positions * d_model if model.positions == "learned" else 0
        tables = (1 if model.tied_embeddings else 2) * self.vocabulary_size * d_model
        return stack + final_norm + tables + positions

    def layers(self) -> dict[str, int]:
        """Returns {config field: number of layers}."""
        return {"model.layers": self.config.layers}
