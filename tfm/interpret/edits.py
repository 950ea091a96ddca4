"""Edits: functions of an activation and its `Point`. Numbers may be traced: one program for all heads.

Shape letters as in `tfm.layers`, and those of `Point.axes`.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tfm.errors import UserError
from tfm.layers.activations import Edit, Point

ROWS, QUERIES, KEYS, HEADS = "BLMH"


def zero(value: jax.Array, point: Point) -> jax.Array:
    """The edit that sets all to zero: a whole sublayer at its "sublayer_output"."""
    del point
    return jnp.zeros_like(value)


def scale(factor: ArrayLike) -> Edit:
    """Multiplies all by a factor."""
    return lambda value, point: _multiply(value, factor)


def scale_head(head: ArrayLike, factor: ArrayLike) -> Edit:
    """Multiplies one head, from 0, by a factor; of activations with the axis H."""
    return lambda value, point: _scale_index(value, point, HEADS, head, factor)


def scale_neuron(neuron: ArrayLike, factor: ArrayLike) -> Edit:
    """Multiplies one feature, from 0, by a factor: index of the last axis, F of a feed-forward network."""
    return lambda value, point: _scale_index(value, point, point.axes[-1], neuron, factor)


def scale_position(position: ArrayLike, factor: ArrayLike, axis: str = "") -> Edit:
    """Multiplies one position, from 0, by a factor.

    Args:
      position: within its sequence: of the source or the target, whichever the axis stands for. Sequences
        without it stay as they are.
      factor: of that position.
      axis: "L", the positions, or "M", those attended to; L where the activation has it when "".

    Raises:
      UserError: the position is not an integer, or negative.
    """
    _check_index(position, np.inf, "position")

    def edit(value, point):
        letter = axis or (QUERIES if QUERIES in point.axes else KEYS)
        _check_axis(point, letter)
        chosen = point.positions[letter] == position
        shape = [n if each in (ROWS, letter) else 1 for n, each in zip(value.shape, point.axes, strict=True)]
        return jnp.where(chosen.reshape(shape), _multiply(value, factor), value)

    return edit


def zero_head(head: ArrayLike) -> Edit:
    """Switches off one head; at "head_outputs" it is as if its slice of the output matrix were not there."""
    return scale_head(head, 0)


def zero_neuron(neuron: ArrayLike) -> Edit:
    """Switches off one feature of the last axis."""
    return scale_neuron(neuron, 0)


def zero_position(position: ArrayLike, axis: str = "") -> Edit:
    """Sets one position to zero, see `scale_position`."""
    return scale_position(position, 0, axis)


def replace_with(replacement: ArrayLike) -> Edit:
    """Replaces an activation by one of the same point, such as one read in another run.

    Args:
      replacement: with the axes of the point, for all rows of the caller's batch, or one row for all of them.
        Positions that it does not have stay as they are; keys that it does not have get zeros.
    """

    def edit(value, point):
        found = jnp.asarray(replacement)
        _check_replacement(found, value, point)
        found = jnp.take(found, point.rows, axis=0, mode="clip")
        kept = True
        for letter, positions in point.positions.items():
            axis = point.axes.index(letter)
            if found.shape[axis] == value.shape[axis] > 1:
                continue  # position by position, also of packed rows; a cached step has one
            there = _expand(positions < found.shape[axis], found.ndim, axis)
            found = _take_along(found, positions, axis)
            if letter == KEYS and QUERIES in point.axes:
                found = jnp.where(there, found, 0)
            else:
                kept = there
        return jnp.where(kept, found.astype(value.dtype), value)

    return edit


def _check_replacement(replacement, value, point):
    """Raises a UserError for a replacement that does not have the rows, heads or features of a value."""
    rows = int(point.rows.max()) + 1
    expected = [
        n if axis not in point.positions else axis for n, axis in zip(value.shape, point.axes, strict=True)
    ]
    expected[0] = rows
    found = [
        n if axis not in point.positions else axis
        for n, axis in zip(replacement.shape, point.axes, strict=False)
    ]
    if replacement.ndim != value.ndim or found[1:] != expected[1:] or found[0] not in (1, rows):
        raise UserError(
            f"The replacement for {point.name} must have the axes {point.axes} and the shape {expected}, got "
            f"{list(replacement.shape)}."
        )


def patch(reads: Mapping[str, jax.Array]) -> dict[str, Edit]:
    """Activation patching: the edits that replace each activation by that of another run.

    Args:
      reads: {name: value}, what `run` and others return.
    """
    return {name: replace_with(value) for name, value in reads.items()}


def _multiply(value, factor):
    return (value * factor).astype(value.dtype)


def _scale_index(value, point, letter, index, factor):
    """`value` with one index of an axis multiplied by a factor."""
    _check_axis(point, letter)
    axis = point.axes.index(letter)
    _check_index(index, value.shape[axis], f"{point.name} has {value.shape[axis]} along its axis {letter}")
    chosen = _expand(jnp.arange(value.shape[axis])[None] == index, value.ndim, axis)
    return jnp.where(chosen, _multiply(value, factor), value)


def _check_index(index, size, what):
    """Raises a UserError for an index that is not there, as nothing would change; a traced one passes."""
    if isinstance(index, jax.core.Tracer):
        return
    given = np.asarray(index)
    if not np.issubdtype(given.dtype, np.integer) or not ((given >= 0) & (given < size)).all():
        end = f"to {size - 1}" if np.isfinite(size) else "on"
        raise UserError(f"{what}: expected an integer from 0 {end}, got {index}.")


def _check_axis(point, letter):
    if letter not in point.axes:
        raise UserError(f"{point.name} has no axis {letter}: its axes are {point.axes}.")


def _expand(rows, ndim, axis):
    """[B, n] -> [B, 1, ..., n, ..., 1], n at `axis`."""
    shape = [1] * ndim
    shape[0], shape[axis] = rows.shape
    return rows.reshape(shape)


def _take_along(x, positions, axis):
    """x [B, ..., length, ...] at positions [B, n] of `axis`, the last one for those beyond."""
    index = _expand(jnp.minimum(positions, x.shape[axis] - 1), x.ndim, axis)
    return jnp.take_along_axis(x, index, axis=axis)
