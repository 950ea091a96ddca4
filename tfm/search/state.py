"""The state that a search carries from step to step, and the hypotheses that it returns."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

State = Any  # a pytree of arrays whose leaves begin with the axis B
# (tokens int32 [B, W], state, position int32 scalar) -> (logits [B, W, V], state)
Step = Callable[[jax.Array, State, jax.Array], tuple[jax.Array, State]]
Tree = TypeVar("Tree")


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
      state: A pytree. If a node has an attribute `max_length`, it is the number of positions for which the
        node has space.
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
    for node in jax.tree.leaves(state, is_leaf=lambda node: hasattr(node, "max_length")):
        capacity = getattr(node, "max_length", None)
        if capacity is not None and max_length > capacity:
            raise ValueError(
                f"Expected max_length to be at most {capacity}, the number of positions that the state "
                f"({type(node).__name__}) has space for, got {max_length}."
            )
