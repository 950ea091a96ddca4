"""Reads a tree of arrays that Orbax wrote, once its shapes are known to fit."""

import pathlib

import jax
import orbax.checkpoint as ocp

from tfm.errors import UserError


def restore_tree(folder, like, what):
    """Reads what Orbax wrote into `folder`.

    Args:
      folder: of one item of a step.
      like: the tree that is expected; its leaves give shape, dtype and place.
      what: what the folder is, for a sentence.

    Raises:
      UserError: it is of other shapes, found before anything is allocated.
    """
    like = jax.tree.map(_abstract, like)
    stored = ocp.StandardCheckpointHandler().metadata(pathlib.Path(folder)).tree
    check_shapes(like, stored, what)
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(folder, like)


def _abstract(x):
    """Shape, dtype and place of an array; a ShapeDtypeStruct without a place goes to the first device."""
    sharding = getattr(x, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def check_shapes(expected, stored, what):
    """Raises a UserError about `what` that names the first leaf of another shape."""
    wanted = _shapes(expected)
    found = _shapes(stored)
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise UserError(
                f"{what} is of another model: {name} should be {wanted.get(name, 'absent')} "
                f"and is {found.get(name, 'absent')}; use the config that it was trained with."
            )


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
