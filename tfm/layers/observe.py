"""Named activations that callers of a model can read and edit, see `tfm.interpret`.

Layers pass each activation through `observe`. An observer that is active while the model is traced can read
the activation and replace it. Without an active observer, `observe` returns the activation unchanged and adds
nothing to the compiled program.
"""

import contextlib
import contextvars
import fnmatch
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.errors import UserError


class Observer(Protocol):
    """Receives activations by name. `tfm.interpret.recorder.Recorder` reads and edits them."""

    def wants(self, *names: str) -> bool:
        """Returns whether the observer reads or edits one of these activations.

        The model computes the activations only if an observer returns True.
        """
        ...

    def observe(
        self,
        name: str,
        value: jax.Array,
        axes: str,
        positions: Mapping[str, jax.Array | None],
        editable: bool,
    ) -> jax.Array:
        """Returns the activation with which the model continues.

        See the function `observe` for the arguments. `name` is the full name.
        """
        ...

    def explain_missing(self, name: str, reason: str) -> None:
        """Receives the reason why the model has no activation of this name."""
        ...


class _Context(NamedTuple):
    """The active observers, the innermost first, and the positions of the axis L."""

    observers: tuple[Observer, ...] = ()
    positions: jax.Array | None = None


_NO_OBSERVERS = _Context()
_CONTEXT: contextvars.ContextVar[_Context] = contextvars.ContextVar("observers", default=_NO_OBSERVERS)


@contextlib.contextmanager
def activate(observer: Observer | None) -> Iterator[None]:
    """Activates an observer while the `with` block runs.

    Blocks can be nested. An activation passes through the innermost observer first, so outer observers read
    the edited value. None deactivates all observers inside the block.

    Observers act while a model is traced. JAX does not trace a jitted function again if it was called before
    with the same shapes, so such a function needs a new `jax.jit`.
    """
    context = _CONTEXT.get()
    observers = () if observer is None else (observer, *context.observers)
    token = _CONTEXT.set(context._replace(observers=observers))
    try:
        yield
    finally:
        _CONTEXT.reset(token)


@contextlib.contextmanager
def with_positions(positions: jax.Array | None) -> Iterator[None]:
    """Sets the positions of the axis L that observers receive while the `with` block runs.

    Args:
      positions: int [B, L], [L] or a scalar. None means 0, 1, 2, ...
    """
    token = _CONTEXT.set(_CONTEXT.get()._replace(positions=positions))
    try:
        yield
    finally:
        _CONTEXT.reset(token)


def is_active() -> bool:
    """Returns whether an observer is active."""
    return bool(_CONTEXT.get().observers)


def is_wanted(module: nn.Module, *names: str) -> bool:
    """Returns whether an active observer reads or edits one of these activations of a module."""
    full_names = [_full_name(module, name) for name in names]
    # Ask every observer, because observers record the names for their error messages.
    wanted = [observer.wants(*full_names) for observer in _CONTEXT.get().observers]
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
    """Passes an activation through the active observers and returns the result.

    Without an active observer, the result is the activation itself.

    Args:
      module: A bound module. The full name of the activation begins with the path of the module.
      name: Name of the activation within the module.
      value: The activation.
      axes: A letter for each axis, see `tfm.interpret.Point`.
      positions: Positions of the axis L: int [B, L], [L] or a scalar. None means the positions that
        `with_positions` has set.
      key_positions: Positions of the axis M: int [B, M] or [M]. None means 0, 1, 2, ...
      editable: Whether the model continues with the returned value. If not, an edit is an error.

    Raises:
      UserError: If an edit changes the shape or the dtype, or if the activation is not editable.
    """
    context = _CONTEXT.get()
    of_axes = {"L": context.positions if positions is None else positions, "M": key_positions}
    for observer in context.observers:
        value = observer.observe(_full_name(module, name), value, axes, of_axes, editable)
    return value


def explain_missing(module: nn.Module, name: str, reason: str) -> None:
    """Passes to the active observers the reason why a module has no activation with this name."""
    for observer in _CONTEXT.get().observers:
        observer.explain_missing(_full_name(module, name), reason)


def _full_name(module: nn.Module, name: str) -> str:
    """Returns the path of a module and the name of an activation, joined by dots."""
    return ".".join((*module.path, name))


class _Reader:
    """An observer that reads all activations whose name matches a glob."""

    def __init__(self, point: str):
        self.point = point
        self.values: list[jax.Array] = []

    def wants(self, *names: str) -> bool:
        return bool(fnmatch.filter(names, self.point))

    def observe(self, name: str, value: jax.Array, *_: Any) -> jax.Array:
        if self.wants(name):
            self.values.append(value)
        return value

    def explain_missing(self, name: str, reason: str) -> None:
        """Ignores the reason."""


def read_attention(point: str, compute: Callable[[], Any]) -> tuple[Any, jax.Array]:
    """Calls a function that applies a model, and reads the attention weights of the model in this call.

    Args:
      point: Name or glob of the weights, such as `Transformer.attention_points["cross"]`.
      compute: Function without arguments that applies the model.

    Returns:
      The result of `compute`, and the weights of all matching layers, [layers, B, H, L, M].

    Raises:
      UserError: If the model has no attention weights with this name.
    """
    reader = _Reader(point)
    with activate(reader):
        result = compute()
    if not reader.values:
        raise UserError(
            f"Expected attention weights named {point!r}, but the model has none. If a module replaces "
            "attention, report its weights with tfm.layers.observe.observe(self, 'weights', weights, 'BHLM')."
        )
    return result, jnp.stack(reader.values)
