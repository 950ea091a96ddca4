"""Named activations that callers of a model can read and edit, see `tfm.interpret`.

Layers pass activations through `observe`. It returns them unchanged and adds nothing to the program unless an
observer is active while the model is traced.
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
        """Returns whether it reads or edits one of these activations, which are not computed otherwise."""
        ...

    def observe(
        self,
        name: str,
        value: jax.Array,
        axes: str,
        positions: Mapping[str, jax.Array | None],
        editable: bool,
    ) -> jax.Array:
        """Returns the activation with which the model continues. The arguments are those of `observe`."""
        ...

    def explain_missing(self, name: str, reason: str) -> None:
        """Receives the reason why the model has no activation of this name."""
        ...


class _Context(NamedTuple):
    observers: tuple[Observer, ...] = ()  # the innermost first
    positions: jax.Array | None = None  # of the axis L


_NO_OBSERVERS = _Context()
_CONTEXT: contextvars.ContextVar[_Context] = contextvars.ContextVar("observers", default=_NO_OBSERVERS)


@contextlib.contextmanager
def activate(observer: Observer | None) -> Iterator[None]:
    """Activates an observer for everything that is traced inside of the `with` block.

    Observers can be nested. The innermost one comes first, so the outer ones read what it has edited. None
    deactivates all of them. A function that was jitted and called before is not traced again, so it needs a
    new `jax.jit`.
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
    """Sets the positions of the axis L inside: int [B, L], [L] or a scalar. None means 0, 1, 2, ..."""
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
    wanted = [observer.wants(*full_names) for observer in _CONTEXT.get().observers]  # each notes the names
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
    """Returns an activation as the active observers edit it, or unchanged without an observer.

    Args:
      module: A bound module. The full name begins with its path.
      name: Name of the activation within the module.
      value: The activation.
      axes: A letter for each axis, see `tfm.interpret.Point`.
      positions: Positions of the axis L: int [B, L], [L] or a scalar. None means those of `with_positions`.
      key_positions: Positions of the axis M: int [B, M] or [M]. None means 0, 1, 2, ...
      editable: False if the model does not continue with what this function returns.

    Raises:
      UserError: An edit changed the shape or the dtype, or edits an activation that is not editable.
    """
    context = _CONTEXT.get()
    of_axes = {"L": context.positions if positions is None else positions, "M": key_positions}
    for observer in context.observers:
        value = observer.observe(_full_name(module, name), value, axes, of_axes, editable)
    return value


def explain_missing(module: nn.Module, name: str, reason: str) -> None:
    """Passes the reason why a module has no activation of this name to the active observers."""
    for observer in _CONTEXT.get().observers:
        observer.explain_missing(_full_name(module, name), reason)


def _full_name(module: nn.Module, name: str) -> str:
    return ".".join((*module.path, name))


class _Reader:
    """An observer that reads all activations of one name."""

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
    """Calls a function and reads the attention weights that the model computes in this call.

    Args:
      point: Name of the weights, such as `Transformer.attention_points["cross"]`.
      compute: Applies the model.

    Returns:
      What `compute` returns, and the weights [layers, B, H, L, M].

    Raises:
      UserError: The model has no attention weights of this name.
    """
    reader = _Reader(point)
    with activate(reader):
        result = compute()
    if not reader.values:
        raise UserError(
            f"Expected attention weights named {point!r}, but the model has none. A module that replaces "
            "attention reports its weights with tfm.layers.observe.observe(self, 'weights', weights, 'BHLM')."
        )
    return result, jnp.stack(reader.values)
