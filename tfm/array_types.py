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
from typing import Any, TypeVar

import jax
import jaxtyping
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


def check_arrays(function: Function) -> Function:
    """Returns the function with a check that arrays fit their annotations and each other.

    The check runs when Python calls the function. Under `jax.jit` this happens only while a program is
    traced, so the check does not slow down a training step. The new function raises a TypeError if an
    argument is not an array, for example a list, and a ValueError if the type or the shape of an array does
    not fit. The message contains the name of the argument, its expected shape and the given shapes. Results,
    keywords collected by `**` and annotations written as text are not checked.
    """
    signature = inspect.signature(function)
    annotations = {
        name: _array_annotation(parameter)
        for name, parameter in signature.parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }

    @functools.wraps(function)
    def checked_function(*args, **kwargs):
        shapes: dict[str, tuple[int, ...]] = {}
        with jaxtyping.jaxtyped("context"):  # inside, a name has one size
            for name, value in signature.bind(*args, **kwargs).arguments.items():
                parameter = signature.parameters[name]
                is_starred = parameter.kind is inspect.Parameter.VAR_POSITIONAL
                # Other classes of a union, such as None and `tfm.masks.AttentionMask`, need no check.
                others = (types.NoneType, *typing.get_args(parameter.annotation))
                for array in value if is_starred else (value,):
                    if annotations.get(name) is not None and type(array) not in others:
                        _check_array(name, array, annotations[name], shapes)
        return function(*args, **kwargs)

    return typing.cast(Function, checked_function)


def _array_annotation(parameter: inspect.Parameter) -> Any:
    """Returns the annotation of jaxtyping, or None.

    `Float[Array, ...]` is a union of two annotations, for JAX and for NumPy. `Float[jax.Array, ...]` is a
    single annotation.
    """
    is_union = typing.get_origin(parameter.annotation) in (typing.Union, types.UnionType)
    alternatives = typing.get_args(parameter.annotation) if is_union else (parameter.annotation,)
    for kind in alternatives:
        if isinstance(kind, type) and issubclass(kind, jaxtyping.AbstractArray):
            return kind
    return None


def _check_array(name: str, array: Any, annotation: Any, shapes: dict[str, tuple[int, ...]]) -> None:
    """Raises an error if an argument does not fit. Otherwise adds its shape to `shapes`."""
    kind = annotation.__name__.partition("[")[0]
    what = f"{name} [{annotation.dim_str}]"
    if not isinstance(array, jax.Array | np.ndarray | np.generic):
        raise TypeError(
            f"Expected {what} to be {KINDS[kind]}, got {type(array).__name__}. "
            "Convert it with jax.numpy.asarray."
        )
    if kind != "Shaped" and array.dtype.name not in annotation.dtypes:
        raise ValueError(f"Expected {what} to be {KINDS[kind]}, got {array.dtype}.")
    shaped: Any = jaxtyping.Shaped[Any, annotation.dim_str]
    if not isinstance(array, shaped):
        others = "".join(f", and {other} has {shape}" for other, shape in shapes.items())
        raise ValueError(f"Expected {what} to have this shape, got {array.shape}{others}.")
    shapes[name] = array.shape
