"""Trees of arrays in the files of Orbax: paths, shapes, reading, comparison."""

import glob
import os
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Self

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from flax.traverse_util import unflatten_dict

from tfm.errors import UserError, first_line
from tfm.io.tree_paths import join_path

BLOCK_BYTES = 1 << 15  # of a digest
MAX_GROUP_BYTES = 1 << 28  # of the arrays that are read back at a time, in addition to the largest array


class _LiteralPath(type(epath.Path())):  # type: ignore[misc]  # etils chooses the class when it runs
    """A path of etils whose own characters are not a pattern.

    Orbax finds and merges the files of each process by `path.glob("ocdbt.process_*")`. etils passes the whole
    path to `glob.glob`. Orbax would therefore find no files below a folder named "t[x]", and files of
    other folders below "t*".
    """

    def glob(self, pattern: str) -> Iterator[Self]:
        for path in glob.glob(os.path.join(glob.escape(os.fspath(self)), pattern)):
            yield type(self)(path)


def orbax_path(folder: str | os.PathLike) -> epath.Path:
    """Returns the path to give to Orbax, in which all characters are literal.

    Raises:
      UserError: if Orbax would use another place, for example a bucket for /gs/NAME.
    """
    folder = os.path.abspath(folder)
    path = epath.Path(_LiteralPath(folder))
    if os.fspath(path) != folder:
        raise UserError(f"Orbax would use {os.fspath(path)} instead of {folder}. Choose another --workdir.")
    return path


class Digests(NamedTuple):
    """Shapes and digests that an equal copy of a tree must have.

    Attributes:
      shapes: the tree as ShapeDtypeStructs.
      parts: for each leaf, [(index, digest of the elements there)] of the parts that this host has.
    """

    shapes: Any
    parts: list


def list_parts(tree: Any) -> list[list[tuple[Any, Any]]]:
    """Returns, for each leaf, [(index, elements)] of the different parts that this host has.

    Call this before two threads use the arrays. JAX lists the shards of an array at the first request. If two
    threads request them at the same time, JAX 0.10.2 returns incomplete lists to both of them and keeps the
    lists, so that Orbax does not write the missing shards.
    """
    return [_parts(x) for x in jax.tree.leaves(tree)]


def digest_tree(tree: Any, parts: list[list[tuple[Any, Any]]]) -> Digests:
    """Returns the digests of a tree with these parts. The arrays may change afterwards."""
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)
    return Digests(shapes, [[(index, _digest(part)) for index, part in each] for each in parts])


def find_difference(folder: str, expected: Digests) -> str:
    """Reads a saved tree and compares it with the digests of what was saved.

    Returns:
      The first difference, for an error message, or "" if the trees are equal.
    """
    sizes = [x.size * x.dtype.itemsize for x in jax.tree.leaves(expected.shapes)]
    groups = np.cumsum(sizes) // MAX_GROUP_BYTES
    try:
        for group in dict.fromkeys(groups):
            if difference := _compare_values(folder, expected, np.flatnonzero(groups == group)):
                return difference
    except (OSError, ValueError, KeyError) as error:  # raised by TensorStore and for damaged JSON
        return first_line(error)
    return ""


def describe_arrays(tree: Any) -> dict[str, list]:
    """Returns {path: [shape, dtype]} of the arrays of a tree, for JSON."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {join_path(path): [list(x.shape), np.dtype(x.dtype).name] for path, x in leaves}


def shapes_of(arrays: Mapping[str, list]) -> dict[str, Any]:
    """Returns the tree of ShapeDtypeStructs that `describe_arrays` described.

    All of its nodes are dicts: the keys of a tuple are its indices, and the keys of a named tuple are its
    field names.
    """
    shapes = {path: jax.ShapeDtypeStruct(shape, np.dtype(dtype)) for path, (shape, dtype) in arrays.items()}
    return unflatten_dict(shapes, sep="/")


def read_tree(folder: str, like: Mapping[str, Any], stored: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Reads some of the branches of a saved tree.

    Args:
      folder: folder that Orbax wrote.
      like: {branch: tree} whose leaves have the shape, dtype and sharding of the result. A leaf without a
        sharding is placed on the first device.
      stored: the shapes that the folder contains, see `shapes_of`.
      what: names the folder in error messages.

    Raises:
      UserError: if a branch is missing or has other shapes. Nothing is allocated before this check.
    """
    for branch in like:
        if branch not in stored:
            raise UserError(
                f"{what} has no {branch}. Use the config that it was trained with. training.ema_decay above "
                "0 adds the branch average."
            )
    check_shapes(like, {branch: stored[branch] for branch in like}, what)
    like = jax.tree.map(_with_sharding, dict(like))
    arguments = ocp.checkpoint_utils.construct_restore_args(like)
    request = ocp.args.PyTreeRestore(item=like, restore_args=arguments, partial_restore=True)
    return ocp.PyTreeCheckpointHandler().restore(orbax_path(folder), args=request)


def check_shapes(expected: Any, stored: Any, what: str) -> None:
    """Raises a UserError that names the first array that is missing, unexpected or of a different shape.

    Args:
      expected: tree of the model's arrays, or of their shapes.
      stored: tree to compare, of arrays or shapes.
      what: subject of the error message, such as the path of a checkpoint.
    """
    wanted, actual = _shapes_by_path(expected), _shapes_by_path(stored)
    for path in sorted(wanted.keys() | actual.keys()):
        if wanted.get(path) != actual.get(path):
            raise UserError(
                f"{what} is of another model: {path} should be {wanted.get(path, 'absent')} and is "
                f"{actual.get(path, 'absent')}. Use the config that it was trained with."
            )


def check_finite(params: Any, what: str) -> None:
    """Raises a UserError about `what` that names the first parameter with a value that is not finite.

    Args:
      params: tree of arrays. The elements on this host are checked.
      what: names the parameters in the error message.
    """
    for path, x in jax.tree_util.tree_leaves_with_path(params):
        if not all(np.isfinite(part).all() for _, part in _parts(x)):
            raise UserError(
                f"{what} contains values that are not finite, the first in parameter {join_path(path)}. "
                "Use another checkpoint or export."
            )


def average_trees(trees: Iterable[Any]) -> Any:
    """Returns the element-wise mean of trees of variables (section 6.1 averages the last checkpoints).

    Args:
      trees: at least one tree. All have the same structure and shapes. Only one is kept in memory at a time.
        Sums are computed in float64, on each host from the parts that it has.

    Returns:
      A tree with arrays of the same kind, dtype and placement as in the last tree.
    """
    total, count = None, 0
    for tree in trees:
        wide = jax.tree.map(
            lambda x: {str(index): np.asarray(part, np.float64) for index, part in _parts(x)}, tree
        )
        total = wide if total is None else jax.tree.map(np.add, total, wide)
        count += 1

    def divide(last, sums):
        means = {index: (part / count).astype(last.dtype) for index, part in sums.items()}
        if not isinstance(last, jax.Array):
            return means[str(...)]
        return jax.make_array_from_callback(last.shape, last.sharding, lambda index: means[str(index)])

    return jax.tree.map(divide, tree, total)


def _compare_values(folder: str, expected: Digests, group: Collection[int]) -> str:
    """Reads the leaves with the numbers `group`, and returns the first difference or ""."""
    named, structure = jax.tree_util.tree_flatten_with_path(expected.shapes)
    wanted = [leaf if number in group else ocp.PLACEHOLDER for number, (_, leaf) in enumerate(named)]
    item = jax.tree.unflatten(structure, wanted)
    as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), item)
    request = ocp.args.PyTreeRestore(item=item, restore_args=as_numpy)
    leaves = jax.tree.leaves(ocp.PyTreeCheckpointHandler().restore(orbax_path(folder), args=request))
    for number in group:
        path, leaf = named[number]
        if (leaves[number].shape, leaves[number].dtype) != (leaf.shape, leaf.dtype):
            return f"{join_path(path)} of {leaf} is read as {leaves[number].dtype}{leaves[number].shape}"
        if any(_digest(leaves[number][index]) != digest for index, digest in expected.parts[number]):
            return f"{join_path(path)} is read with other values"
    return ""


def _shapes_by_path(tree: Any) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {join_path(path): tuple(leaf.shape) for path, leaf in leaves}


def _with_sharding(x: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(x, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def _parts(x: Any) -> list[tuple[Any, Any]]:
    """Returns [(index, elements)] of the different parts of an array that this host has."""
    shards = getattr(x, "addressable_shards", None)
    if shards is None:
        return [(..., x)]
    return [(shard.index, shard.data) for shard in {str(shard.index): shard for shard in shards}.values()]


def _digest(x: Any) -> bytes:
    """Returns the sums of blocks of the elements, and the CRC-32 of the rest after the last whole block.

    A flipped bit changes a sum, and so does a block that was not written. The sums are four times as fast as
    CRC-32, and training waits for them.
    """
    content = np.ascontiguousarray(x).reshape(-1).view(np.uint8)  # a scalar has no bytes to view
    whole = len(content) // BLOCK_BYTES * BLOCK_BYTES
    words = content[:whole].view(np.uint64).reshape(-1, BLOCK_BYTES // 8)
    return np.add.reduce(words, axis=1).tobytes() + zlib.crc32(content[whole:].data).to_bytes(4, "big")
