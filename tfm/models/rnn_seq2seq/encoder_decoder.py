"""The encoder of a whole source and one step of the decoder.

Shape letters as in `tfm.layers`. E is the width of an embedding, A of an annotation (the encoder states of
both directions), F of a state, O of the output layer.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm import layers
from tfm.layers.parameter_axes import declare_axes
from tfm.models.rnn_seq2seq.cells import (
    GRUCell,
    LSTMCell,
    RecurrentLayer,
    ScoredAttention,
    State,
    output_of,
)
from tfm.models.rnn_seq2seq.config import INITIALIZATIONS, RNNConfig


class Encoded(NamedTuple):
    """A source as the decoder reads it.

    Attributes:
      annotations: States of the top layer, [B, M, A].
      keys: Keys of the annotations for the attention, [B, M, K].
      states: For each layer, the states [B, M, F] of each direction of `RNNConfig.initial_directions`.
    """

    annotations: jax.Array
    keys: jax.Array
    states: tuple[tuple[State, ...], ...]


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
        """Embeds tokens [...] as [..., D]."""
        return jnp.take(self.table, tokens, axis=0)


class Encoder(nn.Module):
    """A stack of recurrent layers over the source, in one direction or both."""

    config: RNNConfig

    def setup(self) -> None:
        config = self.config
        self.forward = [RecurrentLayer(make_cell(config)) for _ in range(config.layers)]
        if config.bidirectional:
            self.backward = [RecurrentLayer(make_cell(config), reverse=True) for _ in range(config.layers)]
        self.dropout = layers.Dropout(config.dropout)

    def __call__(
        self, x: jax.Array, segments: jax.Array, *, train: bool
    ) -> tuple[jax.Array, tuple[tuple[State, ...], ...]]:
        """Encodes x [B, M, E] with segments [B, M].

        Returns:
          annotations [B, M, A], and the states of `Encoded`.
        """
        initial_states = []
        for number, forward in enumerate(self.forward):
            x = self.dropout(x, train=train)
            states = {"forward": forward(x, segments)}
            if self.config.bidirectional:
                states["backward"] = self.backward[number](x, segments)
            x = jnp.concatenate([output_of(state) for state in states.values()], axis=-1)
            initial_states.append(tuple(states[name] for name in self.config.initial_directions))
        return x, tuple(initial_states)


class DecoderStep(nn.Module):
    """One position of the decoder.

    The carry from step to step is (states, fed): the state [B, W, F] of each layer, and the features
    [B, W, O] of the last output. `fed` is None without input feeding.
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
            # The cell state and the output of an LSTM have separate projections.
            self.initial = [
                nn.Dense(config.hidden_features, kernel_init=parts.kernel, bias_init=parts.bias, dtype=dtype)
                for _ in range(config.layers * (2 if config.cell == "lstm" else 1))
            ]
        self.dropout = layers.Dropout(config.dropout)

    def keys(self, annotations: jax.Array) -> jax.Array:
        """Returns the attention keys [B, M, K] of annotations [B, M, A]."""
        return annotations if self.config.attention == "none" else self.attention.keys(annotations)

    def initial_states(self, states: tuple[State, ...]) -> tuple[State, ...]:
        """Returns the decoder's first states [..., F] from the encoder's final states.

        Args:
          states: For each layer, the final states [..., F], or [..., 2F] for two directions.
        """
        if self.config.initial_state == "copied":
            return states
        arrays, structure = jax.tree.flatten(states)
        projected = [jnp.tanh(project(x)) for project, x in zip(self.initial, arrays, strict=True)]
        return jax.tree.unflatten(structure, projected)

    def first_fed(self, shape: tuple[int, ...]) -> jax.Array | None:
        """Returns zeros [*shape, O], which the first step is fed, or None without input feeding."""
        if not self.config.input_feeding:
            return None
        return jnp.zeros((*shape, self.config.output_features), jnp.dtype(self.config.dtype))

    def __call__(
        self, carry: Any, x: jax.Array, encoded: Encoded, mask: jax.Array, *, train: bool
    ) -> tuple[Any, tuple[jax.Array, jax.Array | None]]:
        """Computes one step of W hypotheses.

        Args:
          carry: (states, fed), see the class.
          x: Embeddings of the last tokens, [B, W, E].
          encoded: Annotations and keys of the source.
          mask: bool [B, 1 or W, M], the source positions to which each hypothesis may attend.
          train: Whether dropout is on.

        Returns:
          The next carry, and (output features [B, W, O], attention weights [B, W, M] or None).
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
        """Returns the states of all layers after an input [B, W, ...]."""
        found = []
        for cell, state in zip(self.cells, states, strict=True):
            state, x = cell(state, self.dropout(x, train=train))
            found.append(state)
        return tuple(found)

    def _read_out(self, state, x, context):
        """Returns t of appendix A.2.2, or the vector of equation 5 of Luong et al. 2015, [B, W, O]."""
        if self.config.output == "tanh":
            return jnp.tanh(self.output(_joined(context, state)))
        features = self.output(_joined(state, x, context))
        if self.config.output == "linear":
            return features
        return features.reshape(*features.shape[:-1], -1, 2).max(-1)


def make_cell(config: RNNConfig) -> nn.Module:
    """Returns the cell of one layer."""
    parts, dtype = INITIALIZATIONS[config.initialization], jnp.dtype(config.dtype)
    if config.cell == "gru":
        return GRUCell(config.hidden_features, parts, dtype)
    return LSTMCell(config.hidden_features, parts, config.forget_bias, dtype)


def _joined(*parts):
    """Concatenates the features [..., D] of all parts that are not None."""
    return jnp.concatenate([part for part in parts if part is not None], axis=-1)
