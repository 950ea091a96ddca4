"""Named activations that a caller of a model may read and edit, see `tfm.interpret`.

Layers pass activations through `observe`, which returns them as they are and adds nothing to a program,
unless an `Interception` is active while the model is traced.
"""

import contextlib
import contextvars
import difflib
import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tfm.errors import UserError

NEAREST = 3  # names in the error about a glob that matches none


class Point(NamedTuple):
    """What an edit knows of the activation that it gets.

    Attributes:
      name: in full, such as "decoder.layers_0.cross_attention.weights".
      axes: a letter for each axis: B rows, L positions, M positions attended to, H heads, and features D of
        the model, K of a key, V of a value or the vocabulary, F of a hidden layer. "BHLM" is [B, H, L, M].
      rows: int [B], the row of the caller's batch that each row belongs to: in a search, and where the
        hypotheses of a search are read, several rows belong to one of the caller's.
      positions: for each of the letters L and M in `axes`, the position within its sequence of each index of
        that axis, int [B, L] or [B, M]. A cached step has one L: the position that it computes.
    """

    name: str
    axes: str
    rows: np.ndarray
    positions: dict[str, jax.Array]


Edit = Callable[[jax.Array, Point], jax.Array]


class Interception:
    """Reads and edits the activations that it matches while it is active, see `intercept`.

    Attributes:
      reads: {name: value}, what the model goes on with: after the edits.
      points: {name: `Point`} of all activations met, read or not.
    """

    def __init__(
        self, read: Iterable[str] = (), edit: Mapping[str, Edit] | None = None, rows_of_each: int = 1
    ):
        """`read`: globs. `edit`: {glob: function}; of several that match, the first in order comes first.

        `rows_of_each`: rows of the model's batch for each row of the caller's.
        """
        self._read = [read] if isinstance(read, str) else [*read]
        self._edit, self._rows_of_each = dict(edit or {}), rows_of_each
        self._reasons: dict[str, str] = {}
        self._asked: list[str] = []
        self.reads: dict[str, jax.Array] = {}
        self.points: dict[str, Point] = {}

    @property
    def patterns(self) -> list[str]:
        """All globs."""
        return [*self._read, *self._edit]

    def wants(self, *names: str) -> bool:
        """Whether a glob matches one of the names, of activations that are computed only then."""
        self._asked += names
        of_any_use = [pattern.partition("#")[0] for pattern in self.patterns]
        return any(fnmatch.filter(names, pattern) for pattern in of_any_use)

    def call(
        self,
        name: str,
        value: jax.Array,
        axes: str,
        positions: Mapping[str, jax.Array | None],
        editable: bool = True,
    ) -> jax.Array:
        """The value after the edits of `name`, which a second use of one module finds as "name#2"."""
        uses = sum(met.partition("#")[0] == name for met in self.points)
        name = f"{name}#{uses + 1}" if uses else name
        point = _make_point(name, value, axes, positions, self._rows_of_each)
        self.points[name] = point
        for pattern, edit in self._edit.items():
            if fnmatch.fnmatchcase(name, pattern):
                if not editable:
                    raise UserError(f"The model lets {name} be read and not edited, which {pattern!r} would.")
                value = _check_edited(pattern, point, value, edit(value, point))
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in self._read):
            self.reads[name] = value
        return value

    def explain(self, name: str, reason: str) -> None:
        """Keeps why there is no activation of this name, for the error about a glob that matches it."""
        self._reasons[name] = reason

    def check(self, others: Iterable[str] = ()) -> None:
        """Checks that each glob has matched an activation.

        Args:
          others: names of activations that an earlier pass has met.

        Raises:
          UserError: one has not.
        """
        names = [*self.points, *others]
        for pattern in self.patterns:
            if not fnmatch.filter(names, pattern):
                known = dict.fromkeys([*names, *self._asked])
                raise UserError(_describe_no_match(pattern, known, self._reasons))


_ACTIVE: contextvars.ContextVar[tuple[Interception, ...]] = contextvars.ContextVar("active", default=())
_POSITIONS: contextvars.ContextVar[jax.Array | None] = contextvars.ContextVar("positions", default=None)


@contextlib.contextmanager
def intercept(interception: Interception | None) -> Iterator[None]:
    """Activates an interception for everything that is traced inside of the `with` block.

    Interceptions can be nested. The innermost one comes first, so the outer ones read what it has edited.
    None deactivates all of them. A function that was jitted and called before is not traced again, so it
    needs a new `jax.jit`.
    """
    token = _ACTIVE.set(() if interception is None else (interception, *_ACTIVE.get()))
    try:
        yield
    finally:
        _ACTIVE.reset(token)


@contextlib.contextmanager
def at_positions(positions: jax.Array | None) -> Iterator[None]:
    """Sets the positions of the axis L inside: int [B, L], [L] or a scalar; None is 0, 1, 2, ..."""
    token = _POSITIONS.set(positions)
    try:
        yield
    finally:
        _POSITIONS.reset(token)


def read_attention(point: str, compute: Callable[[], Any]) -> tuple[Any, jax.Array]:
    """Calls a function and reads the attention weights that the model computes in this call.

    Args:
      point: Name of the weights, such as `Transformer.attention_points["cross"]`.
      compute: Applies the model.

    Returns:
      What `compute` returns, and the weights [layers, B, H, L, M].

    Raises:
      UserError: The model has no attention weights of this name.
    """
    interception = Interception(point)
    with intercept(interception):
        result = compute()
    return result, stack_weights(interception.reads, point)


def stack_weights(reads: Mapping[str, jax.Array], point: str) -> jax.Array:
    """Returns the attention weights [layers, B, H, L, M] of one kind, in the order of the layers.

    Args:
      reads: {name: activation}, in the order in which the model computed them.
      point: Name of the weights, such as `Transformer.attention_points["cross"]`.

    Raises:
      UserError: The model has no attention weights of this name.
    """
    weights = [value for name, value in reads.items() if fnmatch.fnmatchcase(name, point)]
    if not weights:
        raise UserError(
            f"Expected attention weights named {point!r}, but the model has none. A module that replaces "
            "attention reports its weights with "
            "tfm.layers.activations.observe(self, 'weights', weights, 'BHLM')."
        )
    return jnp.stack(weights)


def is_active() -> bool:
    """Returns whether an interception is active."""
    return bool(_ACTIVE.get())


def is_wanted(module: nn.Module, *names: str) -> bool:
    """Returns whether an active interception reads or edits one of these activations of a module."""
    full_names = [_full_name(module, name) for name in names]
    wanted = [active.wants(*full_names) for active in _ACTIVE.get()]  # every interception notes the names
    return any(wanted)


def observe(
    module: nn.Module,
    name: str,
    value: jax.Array,
    axes: str = "BLD",
    *,
    positions: jax.Array | None = None,
    memory_positions: jax.Array | None = None,
    editable: bool = True,
) -> jax.Array:
    """The value, as the active interception edits it; as it is where none is active.

    Args:
      module: a bound module, whose path the full name begins with.
      name: of the activation within the module.
      value: the activation.
      axes: as in `Point`.
      positions: of the axis L: int [B, L], [L] or a scalar; those of `at_positions` when None.
      memory_positions: of the axis M: int [B, M] or [M]; 0, 1, 2, ... when None.
      editable: False where the model does not go on with what this returns.

    Raises:
      UserError: an edit changed shape or dtype, or there is one where none can be.
    """
    for active in _ACTIVE.get():
        of_axes = {"L": _POSITIONS.get() if positions is None else positions, "M": memory_positions}
        value = active.call(_full_name(module, name), value, axes, of_axes, editable)
    return value


def explain_absence(module: nn.Module, name: str, reason: str) -> None:
    """Tells the active interception, if any, why a module has no activation of this name."""
    for active in _ACTIVE.get():
        active.explain(_full_name(module, name), reason)


def _full_name(module, name):
    return ".".join((*module.path, name))


def _make_point(name, value, axes, positions, rows_of_each):
    """The `Point` of a value, the given positions [B, L], [L], scalar or None of its axes broadcast."""
    batch = value.shape[0]
    found = {}
    for letter in set(axes) & {"L", "M"}:
        length, given = value.shape[axes.index(letter)], positions[letter]
        given = jnp.arange(length) if given is None else jnp.asarray(given)
        found[letter] = jnp.broadcast_to(given, (batch, length))
    return Point(name, axes, np.arange(batch) // rows_of_each, found)


def _check_edited(pattern, point, value, edited):
    """`edited`; raises a UserError unless it is an array like `value`."""
    shape, dtype = getattr(edited, "shape", None), getattr(edited, "dtype", None)
    if (shape, dtype) != (value.shape, value.dtype):
        got = repr(edited) if shape is None or dtype is None else f"{dtype}{list(shape)}"
        raise UserError(
            f"The edit of {pattern!r} must return an activation like the one it gets: expected "
            f"{value.dtype}{list(value.shape)} at {point.name} (axes {point.axes}), got {got}."
        )
    return edited


def _describe_no_match(pattern, names, reasons):
    """The error message about a glob that matches none of the names."""
    for name, reason in reasons.items():
        if fnmatch.fnmatchcase(name, pattern):
            return f"There is no activation {name}: {reason}."
    near = sorted(names, key=lambda name: _similarity(pattern, name), reverse=True)[:NEAREST]
    return (
        f"Expected the name or a glob of activations of this pass, got {pattern!r}, which matches none; the "
        f"nearest are {', '.join(near)}. tfm.interpret.list_points gives all."
    )


def _similarity(pattern, name):
    """Of a glob to a name, 0 to 2: half of it counts the last part alone, the activation in its module."""
    texts = (pattern, name), (pattern.rpartition(".")[2], name.rpartition(".")[2])
    return sum(difflib.SequenceMatcher(None, *pair, autojunk=False).ratio() for pair in texts)
