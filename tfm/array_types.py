"""The type of array arguments, and a check that turns annotated shapes into promises.

`Float[Array, "*batch L H K"]` annotates a JAX or NumPy array of a float type with the named axes (jaxtyping).
A name has the same size in the whole signature. `*batch` is any number of axes. `#L` may also have size 1.
Results are JAX arrays: `Float[jax.Array, "*batch L H V"]`.
"""

import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

Array = jax.Array | np.ndarray
Function = TypeVar("Function", bound=Callable[..., Any])
KINDS = {  # name of an annotation: description for error messages
    "Bool": "an array of booleans (True where a query may attend)",
    "Float": "an array of floats",
    "Integer": "an array of integers",
    "Real": "an array of numbers",
    "Shaped": "an array",
}


class _Axes(NamedTuple):
    """The axes that one name of an annotation stands for."""

    name: str
    is_variadic: bool  # `*batch`
    is_broadcast: bool  # `#L`

    def describe(self, size: tuple[int, ...] | None = None) -> str:
        """Returns the text for error messages, for example "H or 1", or "H = 8" if the size is known."""
        name = "..." if self.is_variadic else self.name
        if size is None:
            return f"{name} or 1" if self.is_broadcast and not self.is_variadic else name
        return f"{name} = {size if self.is_variadic else size[0]}"


class _Size(NamedTuple):
    """The size that an axis has in the arguments so far. A fixed size cannot grow by broadcasting."""

    shape: tuple[int, ...]
    is_fixed: bool


def check_arrays(function: Function) -> Function:
    """Returns the function with a check that arrays fit their annotations and each other.

    The check runs when Python calls the function. Under `jax.jit` this happens only while a program is
    traced, so the check does not slow down a training step. The new function raises a TypeError if an
    argument is not an array, for example a list, and a ValueError if the type or the shape of an array does
    not fit. The message contains the name of the argument, its expected shape and the given shape.
    """
    signature = inspect.signature(function)
    annotations = {name: _array_annotation(each) for name, each in signature.parameters.items()}

    @functools.wraps(function)
    def checked_function(*args, **kwargs):
        sizes: dict[str, _Size] = {}
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            is_starred = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
            for array in value if is_starred else (value,):
                if annotations[name] is not None and array is not None:
                    _check_array(name, array, annotations[name], sizes)
        return function(*args, **kwargs)

    return typing.cast(Function, checked_function)


def _array_annotation(parameter: inspect.Parameter) -> Any:
    """Returns the annotation of jaxtyping, or None.

    `Float[Array, ...]` is a union of two annotations, for JAX and for NumPy. `Float[jax.Array, ...]` is a
    single annotation.
    """
    is_union = typing.get_origin(parameter.annotation) in (typing.Union, types.UnionType)
    alternatives = typing.get_args(parameter.annotation) if is_union else (parameter.annotation,)
    return next((each for each in alternatives if hasattr(each, "dim_str")), None)


def _check_array(name: str, array: Any, annotation: Any, sizes: dict[str, _Size]) -> None:
    """Raises an error if an argument does not fit. Otherwise adds the sizes of its axes to `sizes`."""
    kind = annotation.__name__.partition("[")[0]
    axes = [_read_axes(text) for text in annotation.dim_str.split()]
    shape = f"[{', '.join(each.describe() for each in axes)}]"
    if not isinstance(array, jax.Array | np.ndarray | np.generic):
        raise TypeError(
            f"Expected {name} {shape} to be {KINDS[kind]}, got {type(array).__name__}. "
            "Convert it with jax.numpy.asarray."
        )
    if kind != "Shaped" and array.dtype.name not in annotation.dtypes:
        raise ValueError(f"Expected {name} {shape} to be {KINDS[kind]}, got {array.dtype}.")
    known = ", ".join(each.describe(sizes[each.name].shape) for each in axes if each.name in sizes)
    if not _add_sizes(array.shape, axes, sizes):
        where = f" with {known}" if known else ""
        raise ValueError(f"Expected {name} to have the shape {shape}{where}, got {array.shape}.")


def _read_axes(text: str) -> _Axes:
    """Returns the axes for one word of an annotation, for example `*#batch`."""
    name = text.lstrip("*#")
    markers = text.removesuffix(name)
    return _Axes(name, "*" in markers, "#" in markers)


def _add_sizes(shape: tuple[int, ...], axes: list[_Axes], sizes: dict[str, _Size]) -> bool:
    """Returns whether a shape fits, and adds the sizes of its axes to `sizes`."""
    variadic_length = len(shape) - sum(not each.is_variadic for each in axes)
    if variadic_length < 0 or (variadic_length > 0 and not any(each.is_variadic for each in axes)):
        return False
    end = 0
    for each in axes:
        start, end = end, end + (variadic_length if each.is_variadic else 1)
        size = _merge(shape[start:end], each.is_broadcast, sizes.get(each.name))
        if size is None:
            return False
        sizes[each.name] = size
    return True


def _merge(size: tuple[int, ...], is_broadcast: bool, known: _Size | None) -> _Size | None:
    """Returns the size of an axis after one more argument, or None if the argument does not fit."""
    if known is None:
        return _Size(size, is_fixed=not is_broadcast)
    try:
        merged = np.broadcast_shapes(known.shape, size)
    except ValueError:
        return None
    grows = (known.is_fixed and merged != known.shape) or (not is_broadcast and merged != size)
    return None if grows else _Size(merged, known.is_fixed or not is_broadcast)
