"""An observer that reads and edits the activations whose names match given globs."""

import difflib
import fnmatch
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tfm.errors import UserError

MAX_SHOWN_NAMES = 3  # number of similar names in the error message for a glob that matches nothing


class Point(NamedTuple):
    """A description of the activation that an edit receives.

    Attributes:
      name: Full name, such as "decoder.layers_0.cross_attention.weights".
      axes: A letter for each axis: B rows, L positions, M positions attended to, H heads, D model width, K
        features of a key, V features of a value or size of the vocabulary, F width of a hidden layer. "BHLM"
        means [B, H, L, M].
      rows: The row of the caller's batch to which each row belongs, int [B]. In a search, and when the
        activations of its hypotheses are read, several rows belong to one row of the caller's batch.
      positions: For the letters L and M, if they are in `axes`, the position of each index within its
        sequence, int [B, L] or [B, M]. In a cached step L is 1, the position that the step computes.
    """

    name: str
    axes: str
    rows: np.ndarray
    positions: dict[str, jax.Array]


Edit = Callable[[jax.Array, Point], jax.Array]


class Recorder:
    """A `tfm.layers.observe.Observer` that reads and edits the activations whose names match.

    Attributes:
      reads: {name: value after the edits} of the activations that are read.
      points: {name: `Point`} of all activations, including those that are not read.
    """

    def __init__(
        self, read: str | Iterable[str] = (), edit: Mapping[str, Edit] | None = None, rows_of_each: int = 1
    ):
        """Creates a recorder.

        Args:
          read: Names or globs of the activations to read.
          edit: {name or glob: function}. If several match an activation, all are applied, in this order.
          rows_of_each: Number of rows of the model's batch for each row of the caller's batch.
        """
        self._read = [read] if isinstance(read, str) else [*read]
        self._edit, self._rows_of_each = dict(edit or {}), rows_of_each
        self._reasons: dict[str, str] = {}
        self._asked: list[str] = []
        self.reads: dict[str, jax.Array] = {}
        self.points: dict[str, Point] = {}

    def wants(self, *names: str) -> bool:
        """Returns whether a glob matches one of the names. The model computes them only in this case."""
        self._asked += names
        # A pattern such as "weights#2" selects the second use of a module, whose number is not known yet.
        return any(fnmatch.filter(names, pattern.partition("#")[0]) for pattern in self._patterns)

    def observe(
        self,
        name: str,
        value: jax.Array,
        axes: str,
        positions: Mapping[str, jax.Array | None],
        editable: bool = True,
    ) -> jax.Array:
        """Returns an activation after its edits, and records it if it is read.

        If a module is used several times, its second activation has the name "name#2", and so on.
        """
        uses = sum(known.partition("#")[0] == name for known in self.points)
        name = f"{name}#{uses + 1}" if uses else name
        point = _make_point(name, value, axes, positions, self._rows_of_each)
        self.points[name] = point
        for pattern, edit in self._edit.items():
            if fnmatch.fnmatchcase(name, pattern):
                if not editable:
                    raise UserError(f"{name} can be read, but not edited. Remove the edit of {pattern!r}.")
                value = _check_edited(pattern, point, value, edit(value, point))
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in self._read):
            self.reads[name] = value
        return value

    def explain_missing(self, name: str, reason: str) -> None:
        """Records the reason why the model has no activation with this name, for an error message."""
        self._reasons[name] = reason

    def check(self, other_names: Iterable[str] = ()) -> None:
        """Checks that each glob has matched an activation.

        Args:
          other_names: Names of activations in earlier calls. They count as matches, too.

        Raises:
          UserError: If a glob has matched nothing.
        """
        names = [*self.points, *other_names]
        for pattern in self._patterns:
            if not fnmatch.filter(names, pattern):
                known = dict.fromkeys([*names, *self._asked])
                raise UserError(_describe_no_match(pattern, known, self._reasons))

    @property
    def _patterns(self) -> list[str]:
        return [*self._read, *self._edit]


def _make_point(
    name: str, value: jax.Array, axes: str, positions: Mapping[str, jax.Array | None], rows_of_each: int
) -> Point:
    """Returns the `Point` of an activation.

    Args:
      name, value, axes: Name of the activation, its value, and a letter for each of its axes.
      positions: {"L" or "M": positions}. Positions are int [B, n], [n], a scalar, or None for 0, 1, 2, ...
      rows_of_each: Number of rows of the value for each row of the caller's batch.
    """
    batch = value.shape[0]
    full_positions = {}
    for letter in set(axes) & {"L", "M"}:
        length, given = value.shape[axes.index(letter)], positions[letter]
        index = jnp.arange(length) if given is None else jnp.asarray(given)
        full_positions[letter] = jnp.broadcast_to(index, (batch, length))
    return Point(name, axes, np.arange(batch) // rows_of_each, full_positions)


def _check_edited(pattern: str, point: Point, value: jax.Array, edited: Any) -> jax.Array:
    """Returns `edited`. Raises a UserError unless it is an array with the shape and dtype of `value`."""
    shape, dtype = getattr(edited, "shape", None), getattr(edited, "dtype", None)
    if (shape, dtype) != (value.shape, value.dtype):
        got = repr(edited) if shape is None or dtype is None else f"{dtype}{list(shape)}"
        raise UserError(
            f"The edit of {pattern!r} must return an activation with the same dtype and shape: expected "
            f"{value.dtype}{list(value.shape)} at {point.name} (axes {point.axes}), got {got}."
        )
    return edited


def _describe_no_match(pattern: str, names: Iterable[str], reasons: Mapping[str, str]) -> str:
    """Returns the error message for a glob that matches none of the names."""
    for name, reason in reasons.items():
        if fnmatch.fnmatchcase(name, pattern):
            return f"There is no activation {name}: {reason}."
    near = sorted(names, key=lambda name: _similarity(pattern, name), reverse=True)[:MAX_SHOWN_NAMES]
    return (
        f"Expected the name or a glob of activations of this pass, got {pattern!r}, which matches none. The "
        f"nearest are {', '.join(near)}. tfm.interpret.list_points lists all names."
    )


def _similarity(pattern: str, name: str) -> float:
    """Returns the similarity of a glob to a name, from 0 to 2.

    It is the similarity of the whole texts plus the similarity of their parts after the last dot.
    """
    texts = (pattern, name), (pattern.rpartition(".")[2], name.rpartition(".")[2])
    return sum(difflib.SequenceMatcher(None, *pair, autojunk=False).ratio() for pair in texts)
