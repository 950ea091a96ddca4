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
    """Leaves [B, W, ...] -> [B, W', ...]: hypothesis w continues `parents[b, w]`, int32 [B, W']."""

    def gather(leaf):
        return jnp.take_along_axis(leaf, parents.reshape(*parents.shape, *[1] * (leaf.ndim - 2)), axis=1)

    return jax.tree.map(gather, tree)


def reorder_leaves(state: State, parents: jax.Array) -> State:
    """`gather_beams` of a state with leaves [B, W, ...], for parents int32 [B, W].

    Raises:
      ValueError: a leaf has other leading axes.
    """
    for leaf in jax.tree.leaves(state):
        if leaf.shape[:2] != parents.shape:
            raise ValueError(
                f"expected a state with leaves [B, W, ...], B and W {parents.shape}, got one of shape "
                f"{leaf.shape}: give it these axes, or pass beam search a `reorder` function for this state"
            )
    return gather_beams(state, parents)


def batch_size(state: State) -> int:
    """B, the first axis of every leaf of a decoding state.

    Raises:
      ValueError: the leaves differ in their first axis, or there are none.
    """
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(state)]
    first_axes = {shape[:1] for shape in shapes}
    if len(first_axes) != 1 or () in first_axes:
        raise ValueError(f"expected a state whose leaves all begin with the axis B, got the shapes {shapes}")
    return shapes[0][0]


def check_capacity(state: State, max_length: int) -> None:
    """Checks that a decoding state has space for every position of a search.

    Args:
      state: any pytree; a node may have an attribute `max_length`, the number of positions it has space for,
        as `tfm.layers.kv_cache.DecodingCache` does.
      max_length: of the search.

    Raises:
      ValueError: a node has space for fewer.
    """
    nodes = jax.tree.leaves(state, is_leaf=lambda node: hasattr(node, "max_length"))
    for node in nodes:
        capacity = getattr(node, "max_length", None)
        if capacity is not None and max_length > capacity:
            raise ValueError(
                f"max_length must be at most {capacity}, the positions that the state "
                f"({type(node).__name__}) has space for, got {max_length}"
            )
