"""Recurrent cells, and recurrent layers over packed rows.

Shape letters as in `tfm.layers`. F is the width of a state.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

State = Any  # the state of a cell: an array [..., F], or a tuple of arrays
Initializer = Callable[..., jax.Array]


class Initializers(NamedTuple):
    """The initializers of a recurrent model's kernels, biases and tables [V, D]."""

    kernel: Initializer
    recurrent: Initializer
    attention: Initializer
    score: Initializer
    bias: Initializer
    table: Initializer


class GRUCell(nn.Module):
    """A gated recurrent unit (Cho et al. 2014) in the form of Bahdanau et al. 2015, appendix A.1.1.

        r, z = sigmoid(W x + U h), sigmoid(W_z x + U_z h)
        h' = (1 - z) * h + z * tanh(W_h x + U_h (r * h))

    `flax.linen.GRUCell` computes r * (U_h h) instead. The cell is called like a Flax cell:
    (h, x) -> (h', h').

    Attributes:
      features: Width of the state, F.
      initializers: `kernel` initializes W, `recurrent` each U, and `bias` the biases.
      dtype: Compute dtype.
    """

    features: int
    initializers: Initializers
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the next state [..., F] twice, for the state h [..., F] and the input x [..., D]."""
        reset, update, candidate = jnp.split(_dense_in_parts(self, "input", 3, "kernel", True)(x), 3, axis=-1)
        gates = _dense_in_parts(self, "recurrent_gates", 2, "recurrent", False)(h)
        reset, update = jnp.split(nn.sigmoid(jnp.concatenate([reset, update], -1) + gates), 2, axis=-1)
        project = _dense_in_parts(self, "recurrent_candidate", 1, "recurrent", False)
        candidate = jnp.tanh(candidate + project(reset * h))
        h = (1 - update) * h + update * candidate
        return h, h

    def initial_state(self, shape: tuple[int, ...]) -> jax.Array:
        """Returns zeros [*shape, F]."""
        return jnp.zeros((*shape, self.features), self.dtype)


class LSTMCell(nn.Module):
    """An LSTM cell like `flax.linen.OptimizedLSTMCell`, with a forget bias and one matrix for all gates.

        i, f, g, o = sigmoid(W_i x + U_i h), sigmoid(W_f x + U_f h + forget_bias), tanh(...), sigmoid(...)
        c' = f * c + i * g
        h' = o * tanh(c')

    The cell is called like a Flax cell: ((c, h), x) -> ((c', h'), h').

    Attributes:
      features: Width of the state, F.
      initializers: `kernel` initializes W, `recurrent` each U, and `bias` the biases.
      forget_bias: Constant added to the forget gate.
      dtype: Compute dtype.
    """

    features: int
    initializers: Initializers
    forget_bias: float = 0.0
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, state: tuple[jax.Array, jax.Array], x: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        """Returns the next state (c, h) and its output h, each [..., F], for the input x [..., D]."""
        c, h = state
        gates = _dense_in_parts(self, "input", 4, "kernel", True)(x)
        gates = gates + _dense_in_parts(self, "recurrent", 4, "recurrent", False)(h)
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        c = nn.sigmoid(f + self.forget_bias) * c + nn.sigmoid(i) * jnp.tanh(g)
        h = nn.sigmoid(o) * jnp.tanh(c)
        return (c, h), h

    def initial_state(self, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
        """Returns zeros for the cell state c and the output h, each [*shape, F]."""
        zeros = jnp.zeros((*shape, self.features), self.dtype)
        return zeros, zeros


def output_of(state: State) -> jax.Array:
    """Returns the output h [..., F] of a state. The state of a GRU is h. The state of an LSTM is (c, h)."""
    return state[-1] if isinstance(state, tuple) else state


class RecurrentLayer(nn.Module):
    """A layer that runs a cell over the positions of each row, forwards or backwards.

    The state restarts at zero with each segment of a packed row.

    Attributes:
      cell: A `GRUCell` or an `LSTMCell`.
      reverse: Whether the cell runs from the last position to the first.
    """

    cell: nn.Module
    reverse: bool = False

    def __call__(self, x: jax.Array, segments: jax.Array) -> State:
        """Returns the state after each position, for x [B, M, D] and segments int [B, M].

        The state is an array [B, M, F] or, for an LSTM, a pair of such arrays.
        """

        def step(cell, state, inputs):
            x, begins = inputs
            state = select_state(begins, cell.initial_state(x.shape[:1]), state)
            state, _ = cell(state, x)
            return state, state

        scan = nn.scan(
            step,
            variable_broadcast="params",
            split_rngs={"params": False},
            in_axes=1,
            out_axes=1,
            reverse=self.reverse,
        )
        begins = segment_begins(segments[:, ::-1])[:, ::-1] if self.reverse else segment_begins(segments)
        _, states = scan(self.cell, self.cell.initial_state(x.shape[:1]), (x, begins))
        return states


def segment_begins(segments: jax.Array) -> jax.Array:
    """Returns bool [B, M], True at the first position of each segment, for segments int [B, M]."""
    before = jnp.pad(segments[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    return segments != before


def select_state(condition: jax.Array, yes: State, no: State) -> State:
    """Returns the states [..., F] of `yes` where `condition`, bool [...], is True, and of `no` elsewhere."""
    return jax.tree.map(lambda a, b: jnp.where(condition[..., None], a, b), yes, no)


def _dense_in_parts(cell, name, parts, kind, bias):
    """Returns a projection [..., D] -> [..., parts * F] of a cell.

    Each part [D, F] of the kernel is initialized separately, by the initializer `kind` of `Initializers`.
    """
    return nn.Dense(
        parts * cell.features,
        use_bias=bias,
        kernel_init=_in_parts(getattr(cell.initializers, kind), parts),
        bias_init=cell.initializers.bias,
        dtype=cell.dtype,
        name=name,
    )


def _in_parts(initialize, parts):
    """Returns an initializer of kernels [D, parts * F] that initializes each [D, F] separately."""

    def initialize_parts(key, shape, dtype=jnp.float32):
        *rest, features = shape
        keys = jax.random.split(key, parts)
        return jnp.concatenate([initialize(k, (*rest, features // parts), dtype) for k in keys], axis=-1)

    return initialize_parts
