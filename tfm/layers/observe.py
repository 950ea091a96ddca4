"""Named activations that callers of a model can read and edit, see `tfm.interpret`.

Layers pass each activation through `observe`. A `Recorder` that is active while the model is traced can read
the activation and replace it. Without an active recorder, `observe` returns the activation unchanged and adds
nothing to the compiled program.
"""

import contextlib
import contextvars
import difflib
import fnmatch
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
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
        sequence, int [B, L] or [B, M]. In a cached step L is 1, the position that the step computes. Padding
        of a cached prefix has the position -1.
    """

    name: str
    axes: str
    rows: np.ndarray
    positions: dict[str, jax.Array]


Edit = Callable[[jax.Array, Point], jax.Array]


def matches(name: str, pattern: str) -> bool:
    """Returns whether a glob matches the full name of an activation.

    If a module is used several times, its activations are "name", "name#2" and so on. A glob without "#"
    matches all of them, "name#2" the second and "name#1" the first.
    """
    base, _, use = name.partition("#")
    return fnmatch.fnmatchcase(f"{base}#{use or 1}" if "#" in pattern else base, pattern)


class Recorder:
    """Reads and edits the activations whose names match given globs, see `matches`.

    Attributes:
      reads: {name: value after the edits} of the activations that are read.
      axes: {name: letters of the axes} of all activations, including those that are not read.
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
        self._patterns = [*self._read, *self._edit]
        self._asked: list[str] = []
        self.reasons: dict[str, str] = {}  # why the model has no activation of this name
        self.reads: dict[str, jax.Array] = {}
        self.axes: dict[str, str] = {}

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

        See the function `observe` for the arguments and errors, and `matches` for modules that are used
        several times. `positions` has the positions of the axes L and M by letter. None means 0, 1, 2, ...
        """
        uses = sum(known.partition("#")[0] == name for known in self.axes)
        name = f"{name}#{uses + 1}" if uses else name
        self.axes[name] = axes
        for pattern, edit in self._edit.items():
            if matches(name, pattern):
                if not editable:
                    raise UserError(f"{name} can be read, but not edited. Remove the edit of {pattern!r}.")
                point = self._make_point(name, value.shape, axes, positions)
                value = _check_edited(pattern, point, value, edit(value, point))
        if any(matches(name, pattern) for pattern in self._read):
            self.reads[name] = value
        return value

    def _make_point(
        self, name: str, shape: tuple[int, ...], axes: str, positions: Mapping[str, jax.Array | None]
    ) -> Point:
        """Returns the `Point` of an activation. None as positions means 0, 1, 2, ..."""
        batch, full_positions = shape[0], {}
        for letter in set(axes) & {"L", "M"}:
            length, given = shape[axes.index(letter)], positions[letter]
            index = jnp.arange(length) if given is None else jnp.asarray(given)
            full_positions[letter] = jnp.broadcast_to(index, (batch, length))
        return Point(name, axes, np.arange(batch) // self._rows_of_each, full_positions)

    def check(self, other_names: Iterable[str] = ()) -> None:
        """Checks that each glob has matched an activation.

        Args:
          other_names: Names of activations in earlier calls. They count as matches, too.

        Raises:
          UserError: If a glob has matched nothing.
        """
        names = [*self.axes, *other_names]
        for pattern in self._patterns:
            if not any(matches(name, pattern) for name in names):
                known = dict.fromkeys([*names, *self._asked])
                raise UserError(_describe_no_match(pattern, known, self.reasons))


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
        if matches(name, pattern):
            return f"There is no activation {name}: {reason}."
    near = sorted(names, key=lambda name: _similarity(pattern, name), reverse=True)[:MAX_SHOWN_NAMES]
    return (
        f"Expected the name or a glob of activations of this pass, got {pattern!r}, which matches none. The "
        f"nearest are {', '.join(near)}. tfm.interpret.list_points lists all names."
    )


def _similarity(pattern: str, name: str) -> float:
    """Returns the similarity of a glob to a name, of the texts plus of their parts after the last dot."""
    texts = (pattern, name), (pattern.rpartition(".")[2], name.rpartition(".")[2])
    return sum(difflib.SequenceMatcher(None, *pair, autojunk=False).ratio() for pair in texts)


class _Context(NamedTuple):
    """The active recorders, the innermost first, and the positions of the axis L."""

    recorders: tuple[Recorder, ...] = ()
    positions: jax.Array | None = None


_NOTHING = _Context()
_CONTEXT: contextvars.ContextVar[_Context] = contextvars.ContextVar("observed", default=_NOTHING)


@contextlib.contextmanager
def _changed_context(**changes: Any) -> Iterator[None]:
    """Changes fields of the context while the `with` block runs."""
    token = _CONTEXT.set(_CONTEXT.get()._replace(**changes))
    try:
        yield
    finally:
        _CONTEXT.reset(token)


def activate(recorder: Recorder | None) -> contextlib.AbstractContextManager[None]:
    """Activates a recorder while a `with` block runs.

    Blocks can be nested. An activation passes through the innermost recorder first, so outer recorders read
    the edited value. None deactivates all recorders inside the block.

    Recorders act while a model is traced. JAX does not trace a jitted function again if it was called before
    with the same shapes, so such a function needs a new `jax.jit`.
    """
    return _changed_context(recorders=() if recorder is None else (recorder, *_CONTEXT.get().recorders))


def with_positions(positions: jax.Array | None) -> contextlib.AbstractContextManager[None]:
    """Sets the positions of the axis L that edits receive while a `with` block runs.

    Args:
      positions: int [B, L], [L] or a scalar. None means 0, 1, 2, ...
    """
    return _changed_context(positions=positions)


def is_active() -> bool:
    """Returns whether a recorder is active."""
    return bool(_CONTEXT.get().recorders)


def is_wanted(module: nn.Module, *names: str) -> bool:
    """Returns whether an active recorder reads or edits one of these activations of a module."""
    full_names = [_full_name(module, name) for name in names]
    # Ask every recorder, because recorders keep the names for their error messages.
    wanted = [recorder.wants(*full_names) for recorder in _CONTEXT.get().recorders]
    return any(wanted)


def observe(
    module: nn.Module,
    name: str,
    value: jax.Array,
    axes: str = "BLD",
    *,
    positions: jax.Array | None = None,
    key_positions: jax.Array | None = None,
    editable: bool = True,
) -> jax.Array:
    """Passes an activation through the active recorders and returns the result.

    Without an active recorder, the result is the activation itself.

    Args:
      module: A bound module. The full name of the activation begins with the path of the module.
      name: Name of the activation within the module.
      value: The activation.
      axes: A letter for each axis, see `Point`.
      positions: Positions of the axis L: int [B, L], [L] or a scalar. None means the positions that
        `with_positions` has set.
      key_positions: Positions of the axis M: int [B, M] or [M]. None means 0, 1, 2, ...
      editable: Whether the model continues with the returned value. If not, an edit is an error.

    Raises:
      UserError: If an edit changes the shape or the dtype, or if the activation is not editable.
    """
    context = _CONTEXT.get()
    of_axes = {"L": context.positions if positions is None else positions, "M": key_positions}
    for recorder in context.recorders:
        value = recorder.observe(_full_name(module, name), value, axes, of_axes, editable)
    return value


def explain_missing(module: nn.Module, name: str, reason: str) -> None:
    """Passes to the active recorders the reason why a module has no activation with this name."""
    for recorder in _CONTEXT.get().recorders:
        recorder.reasons[_full_name(module, name)] = reason


def _full_name(module: nn.Module, name: str) -> str:
    """Returns the path of a module and the name of an activation, joined by dots."""
    return ".".join((*module.path, name))


def read_attention(point: str, compute: Callable[[], Any]) -> tuple[Any, jax.Array]:
    """Calls a function that applies a model, and reads the attention weights of the model in this call.

    Args:
      point: Name or glob of the weights, such as `Transformer.attention_points["cross"]`.
      compute: Function without arguments that applies the model.

    Returns:
      The result of `compute`, and the weights of all uses of all matching layers, [layers, B, H, L, M].

    Raises:
      UserError: If the model has no attention weights with this name.
    """
    recorder = Recorder(point)
    with activate(recorder):
        result = compute()
    check_attention(point, recorder.reads)
    return result, jnp.stack([*recorder.reads.values()])


def check_attention(point: str, names: Collection[str]) -> None:
    """Raises a UserError if no attention weights of a model have the name in its `attention_points`."""
    if not names:
        raise UserError(
            f"Expected attention weights named {point!r}, but the model has none. If a module replaces "
            "attention, report its weights with tfm.layers.observe.observe(self, 'weights', weights, 'BHLM')."
        )
