"""The decoding state that a search carries: any pytree whose leaves begin with the batch axis."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

State = Any  # a pytree of arrays
# (tokens int32 [B, W], state, position int32 scalar) -> (logits [B, W, V], state)
Step = Callable[[jax.Array, State, jax.Array], tuple[jax.Array, State]]
Tree = TypeVar("Tree")


def gather_beams(tree: Tree, parents: jax.Array) -> Tree:
    """Reorders leaves [B, W, ...] to [B, W', ...]: hypothesis w continues `parents[b, w]`, int32 [B, W']."""

    def gather(leaf):
        return jnp.take_along_axis(leaf, parents.reshape(*parents.shape, *[1] * (leaf.ndim - 2)), axis=1)

    return jax.tree.map(gather, tree)


def reorder_leaves(state: State, parents: jax.Array) -> State:
    """Reorders a state with leaves [B, W, ...] by `gather_beams`, for parents int32 [B, W].

    Raises:
      ValueError: A leaf has other leading axes.
    """
    for leaf in jax.tree.leaves(state):
        if leaf.shape[:2] != parents.shape:
            raise ValueError(
                f"Expected a state with leaves [B, W, ...], B and W {parents.shape}, got a leaf of shape "
                f"{leaf.shape}. Give it these axes, or pass beam_search a `reorder` function for this state."
            )
    return gather_beams(state, parents)


def check_state(state: State, batch_size: int, max_length: int) -> None:
    """Checks that a decoding state belongs to a batch and has space for every position of a search.

    Args:
      state: A pytree. A node may have an attribute `max_length`, the number of its positions.
      batch_size: B, the first axis of every leaf.
      max_length: Maximum number of tokens of an output.

    Raises:
      ValueError: A leaf does not begin with B, or a node has space for fewer positions.
    """
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(state)]
    if any(shape[:1] != (batch_size,) for shape in shapes):
        raise ValueError(
            f"Expected a state whose leaves all begin with the axis B, {batch_size}, got the shapes {shapes}."
        )
    for node in jax.tree.leaves(state, is_leaf=lambda node: hasattr(node, "max_length")):
        capacity = getattr(node, "max_length", None)
        if capacity is not None and max_length > capacity:
            raise ValueError(
                f"Expected max_length to be at most {capacity}, the positions that the state "
                f"({type(node).__name__}) has space for, got {max_length}."
            )
