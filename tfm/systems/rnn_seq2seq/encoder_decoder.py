"""The recurrent encoder, and one step of the recurrent decoder.

Shape letters as in `tfm.layers`. E is the width of an embedding, A is the width of an annotation (the encoder
states of all directions), F is the width of a state, and O is the width of the output layer.
"""

from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm import layers
from tfm.systems.lstm_lm.cells import GRUCell, LSTMCell, RecurrentLayer, State, output_of
from tfm.systems.rnn_seq2seq.attention import ScoredAttention
from tfm.systems.rnn_seq2seq.config import INITIALIZATIONS, RNNConfig


class Encoded(NamedTuple):
    """An encoded source.

    Attributes:
      annotations: Outputs of the top encoder layer, [B, M, A].
      keys: Attention keys of the annotations, [B, M, K].
      states: For each layer, the states [B, M, F] of each direction in `RNNConfig.initial_directions`.
    """

    annotations: jax.Array
    keys: jax.Array
    states: tuple[tuple[State, ...], ...]


class Encoder(nn.Module):
    """A stack of recurrent layers that read the source in one direction or in both."""

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
        """Encodes the embeddings x [B, M, E] of a source with segments int [B, M].

        Returns:
          The annotations [B, M, A] and the states, as in `Encoded`.
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
    """A module that computes one step of the decoder.

    Each step receives and returns the carry (states, fed). `states` are the states [B, W, F] of all layers.
    `fed` are the output features [B, W, O] of the last step, or None without input feeding.
    """

    config: RNNConfig
    parameter_axes: ClassVar = {"output/kernel": ("hidden", "model")}

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
            # An LSTM needs two projections for each layer: one for the cell state and one for the output.
            self.initial = [
                nn.Dense(config.hidden_features, kernel_init=parts.kernel, bias_init=parts.bias, dtype=dtype)
                for _ in range(config.layers * (2 if config.cell == "lstm" else 1))
            ]
        self.dropout = layers.Dropout(config.dropout)

    def keys(self, annotations: jax.Array) -> jax.Array:
        """Returns the attention keys [B, M, K] of annotations [B, M, A]. Without attention, K is A."""
        return annotations if self.config.attention == "none" else self.attention.keys(annotations)

    def initial_states(self, states: tuple[State, ...]) -> tuple[State, ...]:
        """Computes the decoder's initial states from the encoder's final states.

        Args:
          states: For each layer, the final states [..., F], or [..., 2F] for two directions.

        Returns:
          For each layer, the initial state [..., F].
        """
        if self.config.initial_state == "copied":
            return states
        arrays, structure = jax.tree.flatten(states)
        projected = [jnp.tanh(project(x)) for project, x in zip(self.initial, arrays, strict=True)]
        return jax.tree.unflatten(structure, projected)

    def first_fed(self, shape: tuple[int, ...]) -> jax.Array | None:
        """Returns the `fed` of the first step, zeros [*shape, O]. It is None without input feeding."""
        if not self.config.input_feeding:
            return None
        return jnp.zeros((*shape, self.config.output_features), jnp.dtype(self.config.dtype))

    def __call__(
        self, carry: Any, x: jax.Array, encoded: Encoded, mask: jax.Array, *, train: bool
    ) -> tuple[Any, tuple[jax.Array, jax.Array | None]]:
        """Computes one step of W hypotheses.

        Args:
          carry: (states, fed), see the docstring of the class.
          x: Embeddings of the last tokens, [B, W, E].
          encoded: Annotations and keys of the source.
          mask: bool [B, 1 or W, M], True where a hypothesis may attend to the source.
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

    def _run_cells(self, states: tuple[State, ...], x: jax.Array, train: bool) -> tuple[State, ...]:
        """Returns the next states of all layers, for the input x [B, W, ...] of the first layer."""
        new_states = []
        for cell, state in zip(self.cells, states, strict=True):
            state, x = cell(state, self.dropout(x, train=train))
            new_states.append(state)
        return tuple(new_states)

    def _read_out(self, state: jax.Array, x: jax.Array, context: jax.Array | None) -> jax.Array:
        """Computes the output features [B, W, O].

        These are t in appendix A.2.2 of Bahdanau et al. 2015, or h~ in equation 5 of Luong et al. 2015.
        """
        if self.config.output == "tanh":
            return jnp.tanh(self.output(_joined(context, state)))
        features = self.output(_joined(state, x, context))
        if self.config.output == "linear":
            return features
        return features.reshape(*features.shape[:-1], -1, 2).max(-1)


def make_cell(config: RNNConfig) -> nn.Module:
    """Returns a new cell for one layer."""
    parts, dtype = INITIALIZATIONS[config.initialization], jnp.dtype(config.dtype)
    if config.cell == "gru":
        return GRUCell(config.hidden_features, parts, dtype)
    return LSTMCell(config.hidden_features, parts, config.forget_bias, dtype)


def _joined(*parts: jax.Array | None) -> jax.Array:
    """Concatenates the features [..., D] of all parts that are not None."""
    return jnp.concatenate([part for part in parts if part is not None], axis=-1)
