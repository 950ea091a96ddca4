"""Paths of the leaves of a tree as text, such as "encoder/layers_0/norm/scale"."""

from typing import Any

import jax


def join_path(path: tuple) -> str:
    """Returns the path of a leaf as text.

    Args:
      path: the path as `jax.tree_util` returns it.
    """
    return jax.tree_util.keystr(path, simple=True, separator="/")


def list_paths(tree: Any) -> list[str]:
    """Returns the paths of the leaves of a tree."""
    return [join_path(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
