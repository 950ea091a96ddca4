"""Reads a tree of arrays that Orbax wrote, once its shapes are known to fit."""

from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from tfm.checkpoints.orbax_paths import orbax_path
from tfm.errors import UserError


def restore_tree(folder: str, like: Any, what: str) -> Any:
    """Reads what Orbax wrote into `folder`.

    Args:
      folder: of one item of a step.
      like: the tree that is expected; its leaves give shape, dtype and place.
      what: what the folder is, for an error message.

    Raises:
      UserError: it is of other shapes, found before anything is allocated.
    """
    folder = orbax_path(folder)
    like = jax.tree.map(_abstract, like)
    stored = ocp.StandardCheckpointHandler().metadata(folder).tree
    check_shapes(like, stored, what)
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(folder, like)


def _abstract(x):
    """Shape, dtype and place of an array; a ShapeDtypeStruct without a place goes to the first device."""
    sharding = getattr(x, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def check_shapes(expected: Any, stored: Any, what: str) -> None:
    """Raises a UserError about `what` that names the first leaf of another shape."""
    difference = first_difference(expected, stored)
    if difference is not None:
        name, wanted, found = difference
        raise UserError(
            f"{what} is of another model: {name} should be {wanted} and is {found}; "
            "use the config that it was trained with."
        )


def first_difference(expected: Any, stored: Any) -> tuple[str, Any, Any] | None:
    """(path, expected shape, stored shape) of the first leaf that differs, "absent" for no leaf; or None."""
    wanted, found = _shapes(expected), _shapes(stored)
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            return name, wanted.get(name, "absent"), found.get(name, "absent")
    return None


def check_finite(params: Any, what: str) -> None:
    """Raises a UserError about `what` that names the first parameter with a value that is not finite.

    Args:
      params: tree of arrays, of which the elements on this host are looked at.
      what: for the error message.
    """
    for path, x in jax.tree_util.tree_leaves_with_path(params):
        if not _is_finite(x):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise UserError(
                f"{what} holds values that are not finite, the first in parameter {name}: "
                "use another checkpoint or export."
            )


def _is_finite(x):
    shards = {str(shard.index): shard.data for shard in getattr(x, "addressable_shards", ())}
    return all(np.isfinite(part).all() for part in shards.values() or [x])


def _shapes(tree):
    """{path: shape}. Orbax stores tuples as lists and named tuples as dicts, so names are normalised."""
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda x: hasattr(x, "shape"))
    return {
        "/".join(
            str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path
        ): tuple(leaf.shape)
        for path, leaf in leaves
        if hasattr(leaf, "shape")
    }
