"""Reads a checkpoint back before it is renamed: one that differs from what was saved is not kept."""

import hashlib
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from tfm.checkpoints.orbax_paths import orbax_path
from tfm.checkpoints.restoring import first_difference

AT_ONCE = 1 << 28  # bytes that are read before they are compared; a larger array is read alone


class Unreadable(Exception):
    """How what was read differs from what was saved; part of an error message."""


class Expected(NamedTuple):
    """What reading a tree back must give.

    Attributes:
      tree: the structure that was saved, of ShapeDtypeStructs.
      values: {number of a leaf: [(index, SHA-256 of the elements there)]} of the leaves whose values count.
    """

    tree: Any
    values: dict


class ReadBack:
    """Remembers what the steps of a process must be read back as: all of the first, a part of each later one.

    Of several hosts the first does, as it is the one that gives a step its name.
    """

    def __init__(self):
        self._saved = 0
        self._expected = {}

    def expect(self, trees: Mapping[str, Any]) -> None:
        """Before a step is saved; trees: {name of an item: tree of arrays}."""
        if jax.process_index() == 0:
            turn = self._saved or None
            self._expected = {name: expect(tree, turn) for name, tree in trees.items()}
            self._saved += 1

    def check(self, folder: str) -> None:
        """Behind it, in the folder of the step.

        Raises:
          Unreadable: an item differs, or cannot be read.
        """
        for name, expected in self._expected.items():
            check(os.path.join(folder, name), expected)


def expect(tree: Any, turn: int | None = None) -> Expected:
    """The `Expected` of a tree of arrays, which may be changed or deleted afterwards.

    Args:
      tree: of NumPy and JAX arrays; of an array that several hosts share, what this one has counts.
      turn: None for the values of all leaves; a number for those of one, the next leaf for the next number.
    """
    leaves, structure = jax.tree.flatten(tree)
    chosen = range(len(leaves)) if turn is None else [turn % len(leaves)]
    shapes = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves])
    return Expected(shapes, {number: _parts(leaves[number]) for number in chosen})


def check(folder: str, expected: Expected) -> None:
    """Compares what Orbax reads from the folder of one item with the shapes and values that were saved.

    Raises:
      Unreadable: it differs, or cannot be read.
    """
    handler, folder = ocp.PyTreeCheckpointHandler(), orbax_path(folder)
    try:
        difference = first_difference(expected.tree, handler.metadata(folder).tree)
        if difference is not None:
            name, wanted, found = difference
            raise Unreadable(f"{name} of shape {wanted} is read with shape {found}")
        for numbers in _groups(expected):
            _compare(handler, folder, expected, numbers)
    except (OSError, ValueError, KeyError) as error:  # the errors of TensorStore and of damaged JSON
        raise Unreadable(f"{os.path.basename(folder)}: {str(error).splitlines()[0]}") from error


def _compare(handler, folder, expected, numbers):
    """Reads some of the leaves and compares their values."""
    named, structure = jax.tree_util.tree_flatten_with_path(expected.tree)
    wanted = [leaf if number in numbers else ocp.PLACEHOLDER for number, (_, leaf) in enumerate(named)]
    item = jax.tree.unflatten(structure, wanted)
    as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), item)
    read = handler.restore(folder, args=ocp.args.PyTreeRestore(item=item, restore_args=as_numpy))
    found = jax.tree.leaves(read)
    for number in numbers:
        path, leaf = named[number]
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if found[number].dtype != leaf.dtype:
            raise Unreadable(f"{name} of type {leaf.dtype} is read as {found[number].dtype}")
        if any(_digest(found[number][index]) != digest for index, digest in expected.values[number]):
            raise Unreadable(f"{name} is read with other values")


def _groups(expected):
    """The numbers of the leaves whose values count, in groups of about `AT_ONCE` bytes."""
    sizes = [x.size * x.dtype.itemsize for x in jax.tree.leaves(expected.tree)]
    group: list[int] = []
    size = 0
    for number in expected.values:
        if group and size + sizes[number] > AT_ONCE:
            yield group
            group, size = [], 0
        group.append(number)
        size += sizes[number]
    if group:
        yield group


def _parts(x):
    """[(index, SHA-256)] of the parts of an array that this host has, each once."""
    shards = getattr(x, "addressable_shards", None)
    if shards is None:
        return [(..., _digest(x))]
    different = {str(shard.index): shard for shard in shards}
    return [(shard.index, _digest(shard.data)) for shard in different.values()]


def _digest(x):
    elements = np.ascontiguousarray(x).reshape(-1)  # a scalar has no bytes to view
    return hashlib.sha256(elements.view(np.uint8).data).digest()
