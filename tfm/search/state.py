"""The step function of a search, the state that it carries, and the hypotheses that it returns and scores."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp

from tfm.losses import log_probability, log_z

MAX_FLOAT32_LOG = 88.0  # exp(88) is just below the largest float32.

State = Any  # a pytree of arrays whose leaves begin with the axis B
# (tokens int32 [B, W], state, position int32 scalar) -> (logits [B, W, V], state)
Step = Callable[[jax.Array, State, jax.Array], tuple[jax.Array, State]]
Tree = TypeVar("Tree")


@runtime_checkable
class LimitedState(Protocol):
    """A node of a state that has space for a limited number of positions.

    Attributes:
      max_length: The number of positions. None means no limit.
    """

    max_length: int | None


class Hypotheses(NamedTuple):
    """Finished sequences of each batch row.

    If a search finds fewer than N outputs for a row, the remaining hypotheses have the score -inf, the length
    0 and no tokens.

    Attributes:
      tokens: int32 [B, N, T]. The tokens of an output including EOS, followed by 0.
      scores: float32 [B, N]. NaN means that logits of the model were NaN.
      lengths: int32 [B, N]. The number of tokens including EOS.
    """

    tokens: jax.Array
    scores: jax.Array
    lengths: jax.Array


def ensemble(*steps: Step) -> Step:
    """Combines the steps of several models into one step that averages their probabilities.

    Args:
      steps: The step functions of the models, see `tfm.search`. All models must have the same vocabulary.

    Returns:
      A step function whose state is a tuple with the state of each model. It returns the logarithms of the
      mean probabilities as logits. For a single model, it returns the model's logits.
    """

    def step(
        tokens: jax.Array, states: tuple[State, ...], position: jax.Array
    ) -> tuple[jax.Array, tuple[State, ...]]:
        pairs = zip(steps, states, strict=True)
        results = [member_step(tokens, state, position) for member_step, state in pairs]
        states = tuple(state for _, state in results)
        if len(results) == 1:
            return results[0][0], states
        logs = [log_probability(logits, log_z(logits)[..., None]) for logits, _ in results]
        return jax.nn.logmeanexp(jnp.stack(logs), axis=0), states

    return step


def empty_hypotheses(batch_size: int, count: int, max_length: int, score: float) -> Hypotheses:
    """Returns `Hypotheses` with N = `count` for each row, without tokens and all with the same score."""
    return Hypotheses(
        tokens=jnp.zeros((batch_size, count, max_length), jnp.int32),
        scores=jnp.full((batch_size, count), score, jnp.float32),
        lengths=jnp.zeros((batch_size, count), jnp.int32),
    )


def gather_beams(tree: Tree, parents: jax.Array) -> Tree:
    """Selects hypotheses from all leaves [B, W, ...] of a tree, and returns leaves [B, W', ...].

    Hypothesis w of the result is hypothesis `parents[b, w]` of the tree, for `parents` int32 [B, W'].
    """

    def gather(leaf):
        return jnp.take_along_axis(leaf, parents.reshape(*parents.shape, *[1] * (leaf.ndim - 2)), axis=1)

    return jax.tree.map(gather, tree)


def reorder_leaves(state: State, parents: jax.Array) -> State:
    """Applies `gather_beams` to a state with leaves [B, W, ...], for parents int32 [B, W].

    Raises:
      ValueError: If a leaf does not begin with the axes B and W.
    """
    for leaf in jax.tree.leaves(state):
        if leaf.shape[:2] != parents.shape:
            raise ValueError(
                f"Expected a state with leaves [B, W, ...] and (B, W) = {parents.shape}, got a leaf of shape "
                f"{leaf.shape}. Add these axes, or pass a `reorder` function for this state to beam_search."
            )
    return gather_beams(state, parents)


def check_state(state: State, batch_size: int, max_length: int) -> None:
    """Checks that a decoding state fits the batch and has space for every position of a search.

    Args:
      state: A pytree. A `LimitedState` in it has space for a limited number of positions.
      batch_size: Size of the first axis of every leaf, B.
      max_length: Maximum number of tokens of an output.

    Raises:
      ValueError: If a leaf does not begin with the axis B, or if a node has space for fewer positions.
    """
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(state)]
    if any(shape[:1] != (batch_size,) for shape in shapes):
        raise ValueError(
            f"Expected all leaves of the state to begin with the axis B = {batch_size}, got shapes {shapes}."
        )
    for node in jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, LimitedState)):
        is_limited = isinstance(node, LimitedState) and node.max_length is not None
        if is_limited and max_length > node.max_length:
            raise ValueError(
                f"Expected max_length to be at most {node.max_length}, the number of positions that the "
                f"state ({type(node).__name__}) has space for, got {max_length}."
            )


def length_penalty(length: jax.Array | float, alpha: float) -> jax.Array | float:
    """Returns ((5 + length) / 6) ** alpha (Wu et al. 2016, equation 14; section 6.1 uses alpha 0.6)."""
    return ((5.0 + length) / 6.0) ** alpha


def check_penalty(alpha: float | jax.Array, max_length: int) -> None:
    """Checks that the length penalty of every output is within the range of float32.

    Args:
      alpha: Exponent of the length penalty. A traced `alpha` is not checked.
      max_length: Maximum number of tokens of an output.

    Raises:
      ValueError: If the penalty of an output with `max_length` tokens overflows or underflows.
    """
    if isinstance(alpha, int | float) and not abs(alpha * math.log((5 + max_length) / 6)) < MAX_FLOAT32_LOG:
        raise ValueError(
            "Expected ((5 + length) / 6) ** length_penalty to be within float32, got length_penalty "
            f"{alpha} for up to {max_length} tokens. Choose a length_penalty nearer to 0."
        )
