"""How many bytes a model takes, by arithmetic on its config: nothing is traced and nothing is allocated.

A model that can tell has the property `memory_estimate`, a `MemoryEstimate`; `estimate_of` is None for any
other, and nothing of it is checked. Sizes are Python integers, so no config makes one overflow. Estimates of
a whole pass leave out what is small beside the arrays named in their docstrings.

Shape letters: B rows, M source length, L target length, W hypotheses of a row, T positions in the cache,
D model, F hidden, H heads, K key features, V value features or vocabulary.
"""

import dataclasses
from typing import Any, Protocol

FLOAT32 = 4
INT32 = 4
BATCH_ARRAYS = 6  # tokens, positions and segments of both sides
BATCHES_HELD = 9  # one that is computed and those prefetched, see `tfm.data.batches.schedule`
RELATIVE_KEYS = 33  # vectors of `tfm.layers.RelativeKeys`
RELATIVE_BUCKETS = 32  # of `tfm.layers.RelativeBias`
ITEM_SIZES = {"float32": 4, "bfloat16": 2}
# What the host holds for each layer while a model is traced and compiled. Tracing the shapes of 100 layers
# alone took 51 MiB (CPU, JAX 0.10.2).
LAYER_PROGRAM = 1 << 20


class MemoryEstimate(Protocol):
    """The estimates of a model's memory; only sequence-to-sequence models are asked for the last two."""

    def count_parameters(self) -> int:
        """The number of parameters, exact."""
        ...

    def sizes(self) -> dict[str, int]:
        """{config field: value} of what makes the parameters many."""
        ...

    def layers(self) -> dict[str, int]:
        """{config field: number of layers}, each of which is traced and compiled."""
        ...

    def decoding_bytes(self, *, rows: int, source: int, length: int, width: int, sampling: bool) -> int:
        """Bytes beside the weights that the search of one batch takes."""
        ...

    def scoring_bytes(self, *, rows: int, source: int, target: int, chunk: int) -> int:
        """Bytes beside the weights of a forward pass over given pairs."""
        ...


def estimate_of(model: Any) -> MemoryEstimate | None:
    """The estimate of a Linen module, or None where it has none."""
    return getattr(model, "memory_estimate", None)


def program_bytes(estimate: MemoryEstimate) -> int:
    """Host memory to trace and compile a model, whatever the width of its layers."""
    return LAYER_PROGRAM * sum(estimate.layers().values())


def training_bytes(parameters: int, training: Any) -> int:
    """Bytes of one device for weights, gradients, optimizer state and the moving average.

    Frozen parameters have no optimizer state; how many they are is not known here, so that a run that freezes
    any is estimated without.

    Args:
      parameters: how many.
      training: a `TrainingConfig`; under a mesh its devices share all of these.
    """
    moments = 0 if training.freeze else getattr(training.optimizer, "bytes_per_parameter", 0)
    average = FLOAT32 if training.ema_decay else 0
    sharers = training.mesh_fsdp * training.mesh_tensor if training.parallel in ("mesh", "auto") else 1
    return parameters * (2 * FLOAT32 + moments + average) // sharers


def batches_bytes(tokens: int) -> int:
    """Host memory for batches of so many tokens on each side, those prefetched among them."""
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
        """The number of parameters, exact."""
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
        """{config field: value} of what makes the parameters many."""
        model = self.config
        names = [name.removeprefix("model.") for name in self.layers()] + ["d_model", "d_ff", "heads"]
        names += [name for name in ("key_features", "value_features") if getattr(model, name)]
        if model.positions == "learned":
            names.append("max_positions")
        sizes = {f"model.{name}": getattr(model, name) for name in names}
        return {"data.vocabulary_size": self.vocabulary_size, **sizes}

    def layers(self) -> dict[str, int]:
        """{config field: number of layers}."""
        model = self.config
        return {"model.encoder_layers": model.encoder_layers, "model.decoder_layers": model.decoder_layers}

    def decoding_bytes(
        self, *, rows: int, source: int, length: int, width: int, sampling: bool = False
    ) -> int:
        """Bytes beside the weights that the search of one batch takes.

        The cache; what is kept of each hypothesis (tokens, ancestors, coverage); and the larger of encoding
        the source, with attention [B, H, M, M], and one step, with attention [B, H, W, T * W] and logits
        [B, W, V].

        Args:
          rows, source, length, width: B, M, T and W.
          sampling: whether tokens are sampled, which takes float32 copies of the logits.
        """
        model, vocabulary = self.config, self.vocabulary_size
        item, weight = ITEM_SIZES[model.dtype], self._attention_item()
        slots = width * length + source
        cache = (
            (model.decoder_layers * sum(self._cached_features()) + self._copied_features())
            * rows
            * slots
            * item
        )
        kept = rows * width * (6 * length + source) * INT32 + rows * width * width * length
        attention = rows * model.heads * width * slots * weight
        logits = rows * width * vocabulary * (3 * FLOAT32 if sampling else item + item // 2)
        candidates = 4 * rows * width * min(width + 3, vocabulary) * FLOAT32
        return cache + kept + max(self._pass_bytes(rows, source, source), attention + logits + candidates)

    def scoring_bytes(self, *, rows: int, source: int, target: int, chunk: int) -> int:
        """Bytes beside the weights of a forward pass over given pairs.

        The largest of the attentions [B, H, M, M], [B, H, L, L] and [B, H, L, M] with the layer around it,
        and float32 logits [chunk, V].

        Args:
          rows, source, target: B, M and L.
          chunk: target positions whose logits are held at a time.
        """
        model = self.config
        memory = rows * (source + target) * model.d_model * ITEM_SIZES[model.dtype]
        logits = 2 * min(max(chunk, rows), rows * target) * self.vocabulary_size * FLOAT32
        sides = (source, source), (target, target), (target, source)
        return memory + max(*(self._pass_bytes(rows, *each) for each in sides), logits)

    def _sublayers(self):
        """Parameters of one attention, one feed-forward network and one norm."""
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
        """Parameters of the relative positions of one self-attention."""
        model = self.config
        if model.positions == "relative_keys":
            return RELATIVE_KEYS * (self._head_features()[0] // model.heads)
        return RELATIVE_BUCKETS * model.heads if model.positions == "relative_bias" else 0

    def _head_features(self):
        """(H * K, H * V)."""
        model = self.config
        own = model.d_model // model.heads
        return model.heads * (model.key_features or own), model.heads * (model.value_features or own)

    def _cached_features(self):
        """(G * K, G * V), of keys and values."""
        shared = self.config.heads // (self.config.key_value_heads or self.config.heads)
        return tuple(features // shared for features in self._head_features())

    def _copied_features(self):
        """Of keys and values that a layer copies for the heads of queries that share them."""
        return 0 if sum(self._cached_features()) == sum(self._head_features()) else sum(self._head_features())

    def _attention_item(self):
        """Bytes for each attention weight: float32 logits and their softmax, and a copy in another dtype."""
        return 2 * FLOAT32 + (FLOAT32 if self.config.dtype != "float32" else 0)

    def _pass_bytes(self, rows, queries, keys):
        """Bytes at the peak of one layer's forward pass: attention weights, its inputs, the hidden layer."""
        model = self.config
        attention = rows * model.heads * queries * keys * self._attention_item()
        features = 2 * sum(self._head_features()) + 4 * model.d_model + (1 + model.gated) * model.d_ff
        return attention + rows * max(queries, keys) * features * ITEM_SIZES[model.dtype]


class DecoderMemory(TransformerMemory):
    """The `MemoryEstimate` of a decoder without an encoder; P tokens of a prefix take the place of a source.

    Attributes:
      config: a `tfm.models.decoder_lm.DecoderLMConfig`.
      vocabulary_size: V, tokens.
    """

    def count_parameters(self) -> int:
        """The number of parameters, exact."""
        model, d_model = self.config, self.config.d_model
        attention, feed_forward, norm = self._sublayers()
        stack = model.layers * (attention + self._bias_parameters() + feed_forward + 2 * norm)
        final_norm = 0 if model.norm_order == "post" else norm
        positions = model.max_positions * d_model if model.positions == "learned" else 0
        tables = (1 if model.tied_embeddings else 2) * self.vocabulary_size * d_model
        return stack + final_norm + tables + positions

    def layers(self) -> dict[str, int]:
        """{config field: number of layers}."""
        return {"model.layers": self.config.layers}

    def decoding_bytes(
        self, *, rows: int, source: int, length: int, width: int, sampling: bool = False
    ) -> int:
        """Bytes beside the weights that the continuation of one batch takes.

        The cache, twice, since a prefix is put before it; what is kept of each hypothesis; and the larger of
        reading the prefix, with attention [B, H, P, P], and one step, with attention [B, H, W, P + T * W] and
        logits [B, W, V].

        Args:
          rows, source, length, width: B, P, T and W.
          sampling: whether tokens are sampled, which takes float32 copies of the logits.
        """
        model, vocabulary = self.config, self.vocabulary_size
        item, slots = ITEM_SIZES[model.dtype], source + width * length
        features = 2 * model.layers * sum(self._cached_features()) + self._copied_features()
        cache = rows * features * slots * item
        kept = rows * width * 6 * length * INT32 + rows * width * width * length
        attention = rows * model.heads * width * slots * self._attention_item()
        logits = rows * width * vocabulary * (4 * FLOAT32 if sampling else item + item // 2)
        return cache + kept + max(self._pass_bytes(rows, source, source), attention + logits)
