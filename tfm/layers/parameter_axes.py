"""Names for the axes of parameters, and the mesh axes (data, fsdp, tensor) that shard them.

Each module class uses `declare_axes` to name the axes of the parameters that it creates. `PARAMETER_RULES`
maps the names to mesh axes. Therefore modules do not depend on the number or the layout of devices.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

Axes = tuple[str | None, ...]
Module = TypeVar("Module", bound=type)
PARAMETER_RULES: dict[str | None, tuple[str, ...]] = {
    "vocabulary": ("tensor",),
    "heads": ("tensor",),
    "hidden": ("tensor",),
    "model": ("fsdp",),
}
PROJECTION_AXES: dict[str, Axes] = {  # the axes of the four projections of an attention
    **{f"{name}/kernel": ("model", "heads", "features") for name in ("query", "key", "value")},
    **{f"{name}/bias": ("heads", "features") for name in ("query", "key", "value")},
    "output/kernel": ("heads", "features", "model"),
}
# (end of a parameter's path, rank) -> names of its axes, and the class that declared them
_declared: dict[tuple[str, int], tuple[Axes, str]] = {}


def declare_axes(axes: Mapping[str, Axes]) -> Callable[[Module], Module]:
    """Returns a class decorator that names the axes of the parameters that a module class creates.

        @declare_axes({"gate/kernel": ("model", "hidden"), "output/kernel": ("hidden", "model")})
        class SwiGLU(nn.Module):
            ...

    Args:
      axes: {last parts of the parameter's path: a name or None for each axis}. A name in `PARAMETER_RULES`
        shards the axis. An axis with another name or with None is not sharded. Parameters without a
        declaration are not sharded either.

    Raises:
      ValueError: If another class has declared the same path with other names.
    """

    def declare(module: Module) -> Module:
        owner = f"{module.__module__}.{module.__qualname__}"
        for path, names in axes.items():
            known, other = _declared.get((path, len(names)), (names, owner))
            if other != owner and known != names:
                raise ValueError(
                    f"{owner} declares the axes of {path!r} as {names}, but {other} has declared {known}. "
                    "Give the parameter or its module another name."
                )
            _declared[path, len(names)] = names, owner
        return module

    return declare


def parameter_axes(path: str, rank: int) -> Axes:
    """Returns the names of the axes of a parameter.

    The same names apply to optimizer state whose path ends with the path of the parameter.

    Args:
      path: The names of the modules and of the parameter, separated by "/".
      rank: Number of axes.

    Returns:
      A name for each axis. It is None for an axis without a name, and for all axes of a parameter without a
      declaration.

    >>> parameter_axes("decoder/layers_0/feed_forward/hidden/kernel", 2)
    ('model', 'hidden')
    """
    parts = path.split("/")
    for start in range(len(parts)):  # the longest end first
        if declared := _declared.get(("/".join(parts[start:]), rank)):
            return declared[0]
    return (None,) * rank
