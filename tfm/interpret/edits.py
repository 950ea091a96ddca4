"""Edits: functions that map an activation and its `Point` to a replacement.

The indices and factors of an edit may be traced by JAX. Therefore one compiled program can, for example, zero
any head. Shape letters as in `tfm.layers` and `Point.axes`.
"""

from collections.abc import Mapping, Sequence, Set

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tfm.errors import UserError
from tfm.layers.observe import Edit, Point

Indices = ArrayLike | Sequence[int] | Set[int]  # one index or several indices
QUERIES, KEYS, HEADS = "LMH"


def zero(value: jax.Array, point: Point) -> jax.Array:
    """Sets an activation to zero. At a "sublayer_output", this removes the whole sublayer."""
    del point
    return jnp.zeros_like(value)


def scale(factor: ArrayLike) -> Edit:
    """Returns an edit that multiplies an activation by a factor."""
    return lambda value, point: _multiply(value, factor)


def scale_head(head: Indices, factor: ArrayLike) -> Edit:
    """Returns an edit that multiplies heads by a factor.

    The edit raises a UserError if the activation has no axis H, if there is no index, or if an index that is
    not traced does not exist.

    Args:
      head: Index of a head, counted from 0, or a list, set or array of several.
      factor: Factor of these heads.
    """
    return _scale_indices(HEADS, head, factor)


def scale_neuron(neuron: Indices, factor: ArrayLike) -> Edit:
    """Returns an edit that multiplies features by a factor.

    The edit raises a UserError if there is no index, or if an index that is not traced does not exist.

    Args:
      neuron: Index along the last axis, counted from 0, or a list, set or array of several.
      factor: Factor of these features.
    """
    return _scale_indices("", neuron, factor)


def scale_position(position: Indices, factor: ArrayLike, axis: str = "") -> Edit:
    """Returns an edit that multiplies positions by a factor.

    Args:
      position: Position within the source or the target, counted from 0, or a list, set or array of several.
        Shorter sequences do not change.
      factor: Factor of these positions.
      axis: "L" for queries or "M" for keys. "" means L if the activation has this axis, otherwise M.

    Raises:
      UserError: If a position is not an integer or is negative, or if there are no positions. The edit raises
        it if the activation does not have the axis.
    """
    positions = _as_array(position)
    _check_indices(positions, np.inf, "position")

    def edit(value, point):
        letter = axis or (QUERIES if QUERIES in point.axes else KEYS)
        index = _find_axis(point, letter)
        return _scale_where(value, index, jnp.isin(point.positions[letter], positions), factor)

    return edit


def zero_head(head: Indices) -> Edit:
    """Returns an edit that sets heads to zero, see `scale_head`.

    At "head_outputs", it has the same effect as zeroing the rows of these heads in the output matrix.
    """
    return scale_head(head, 0)


def zero_neuron(neuron: Indices) -> Edit:
    """Returns an edit that sets features of the last axis to zero, see `scale_neuron`."""
    return scale_neuron(neuron, 0)


def zero_position(position: Indices, axis: str = "") -> Edit:
    """Returns an edit that sets positions to zero, see `scale_position`."""
    return scale_position(position, 0, axis)


def replace_with(replacement: ArrayLike) -> Edit:
    """Returns an edit that replaces an activation, for example by the same activation of another run.

    Args:
      replacement: Array with the axes of the point. It has all rows of the caller's batch, or a single row
        for all of them. It may have fewer positions than the activation. The other positions do not change,
        but in an array of queries and keys (axes L and M), the other keys become zeros. The edit converts it
        to the dtype of the activation, and raises a UserError if its other axes differ.
    """

    def edit(value, point):
        new = jnp.asarray(replacement)
        _check_replacement(new, value, point)
        new = jnp.take(new, point.rows, axis=0, mode="clip")
        is_replaced: ArrayLike = True
        axes = {letter: point.axes.index(letter) for letter in point.positions}
        if all(new.shape[axis] == value.shape[axis] > 1 for axis in axes.values()):
            # Both have the same positions in the same order, also in packed rows. A cached step has only one
            # query, at any position of the replacement.
            return new.astype(value.dtype)
        for letter, positions in point.positions.items():
            axis = axes[letter]
            length = new.shape[axis]
            exists = _expand((positions >= 0) & (positions < length), new.ndim, axis)
            index = _expand(jnp.clip(positions, 0, length - 1), new.ndim, axis)
            new = jnp.take_along_axis(new, index, axis=axis)
            if letter == KEYS and QUERIES in point.axes:
                new = jnp.where(exists, new, 0)
            else:
                is_replaced = exists
        return jnp.where(is_replaced, new.astype(value.dtype), value)

    return edit


def _check_replacement(replacement: jax.Array, value: jax.Array, point: Point) -> None:
    """Raises a UserError unless a replacement has the rows, heads and features of an activation."""

    def fixed_sizes(shape):
        """Returns the size of each axis except the rows, or its letter where the sizes may differ."""
        axes = zip(shape[1:], point.axes[1:], strict=False)
        return [letter if letter in point.positions else size for size, letter in axes]

    rows = int(point.rows.max()) + 1
    has_axes = replacement.ndim == value.ndim and replacement.shape[0] in (1, rows)
    if not has_axes or fixed_sizes(replacement.shape) != fixed_sizes(value.shape):
        raise UserError(
            f"The replacement for {point.name} must have the axes {point.axes} and the shape "
            f"{[rows, *fixed_sizes(value.shape)]}, got {list(replacement.shape)}."
        )


def patch(reads: Mapping[str, jax.Array]) -> dict[str, Edit]:
    """Returns edits that replace activations by the activations of another run.

    Args:
      reads: {name: value of the activation}, as `run` returns it.
    """
    # Without "#1", the edit of the first use of a module would also replace the later uses.
    return {name if "#" in name else f"{name}#1": replace_with(value) for name, value in reads.items()}


def _multiply(value: jax.Array, factor: ArrayLike) -> jax.Array:
    """Returns the product in the dtype of the value."""
    return (value * factor).astype(value.dtype)


def _as_array(index: Indices) -> jax.Array | np.ndarray:
    """Returns indices as an array. JAX arrays are returned unchanged, because they may be traced."""
    if isinstance(index, jax.Array):
        return index
    return np.array(sorted(index) if isinstance(index, Set) else index)


def _scale_indices(letter: str, indices: Indices, factor: ArrayLike) -> Edit:
    """Returns an edit that multiplies indices of an axis by a factor. "" means the last axis."""
    array = _as_array(indices)

    def edit(value, point):
        axis = letter or point.axes[-1]
        size = value.shape[_find_axis(point, axis)]
        _check_indices(array, size, f"{point.name} has {size} along its axis {axis}")
        is_scaled = jnp.isin(jnp.arange(size), jnp.asarray(array))[None]
        return _scale_where(value, _find_axis(point, axis), is_scaled, factor)

    return edit


def _scale_where(value: jax.Array, axis: int, is_scaled: jax.Array, factor: ArrayLike) -> jax.Array:
    """Multiplies the indices where `is_scaled`, bool [B or 1, n] along an axis, by a factor."""
    return jnp.where(_expand(is_scaled, value.ndim, axis), _multiply(value, factor), value)


def _check_indices(indices: ArrayLike, size: float, what: str) -> None:
    """Raises a UserError if an index is not an integer from 0 to size - 1, because it would change nothing.

    Traced indices are not checked. `what` begins the error message.
    """
    if isinstance(indices, jax.core.Tracer):
        return
    array = np.asarray(indices)
    exist = np.issubdtype(array.dtype, np.integer) and ((array >= 0) & (array < size)).all()
    if not exist or not array.size:
        end = f"to {size - 1}" if np.isfinite(size) else "on"
        raise UserError(f"{what}: expected integers from 0 {end}, got {indices}.")


def _find_axis(point: Point, letter: str) -> int:
    """Returns the index of an axis of an activation. Raises a UserError if it does not have this axis."""
    if letter not in point.axes:
        raise UserError(f"{point.name} has no axis {letter}: its axes are {point.axes}.")
    return point.axes.index(letter)


def _expand(x: jax.Array, ndim: int, axis: int) -> jax.Array:
    """Reshapes [B, n] to [B, 1, ..., n, ..., 1] with n at `axis`."""
    shape = [1] * ndim
    shape[0], shape[axis] = x.shape
    return x.reshape(shape)
