"""Names of the axes of parameters, and the mesh axes (data, fsdp, tensor) that shard them.

Each module class declares the names of its own parameters with `declare_axes`. Only a mesh gives a name a
meaning, so that no module knows of devices.
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
PROJECTION_AXES: dict[str, Axes] = {  # of the four projections of an attention
    **{f"{name}/kernel": ("model", "heads", "features") for name in ("query", "key", "value")},
    **{f"{name}/bias": ("heads", "features") for name in ("query", "key", "value")},
    "output/kernel": ("heads", "features", "model"),
}
# (end of a parameter's path, rank) -> names of its axes, and the class that declared them
_declared: dict[tuple[str, int], tuple[Axes, str]] = {}


def declare_axes(axes: Mapping[str, Axes]) -> Callable[[Module], Module]:
    """A decorator of module classes: names the axes of the parameters that the class makes.

        @declare_axes({"gate/kernel": ("model", "hidden"), "output/kernel": ("hidden", "model")})
        class SwiGLU(nn.Module):
            ...

    Args:
      axes: {end of the parameter's path: a name of `PARAMETER_RULES`, or None, for each axis}. An axis with a
        name that has no rule, or None, is not sharded, as is every parameter without a declaration.

    Raises:
      ValueError: another class declared the same end of a path with other names.
    """

    def declare(module):
        owner = f"{module.__module__}.{module.__qualname__}"
        for path, names in axes.items():
            known, other = _declared.get((path, len(names)), (names, owner))
            if other != owner and known != names:
                raise ValueError(
                    f"{owner} declares the axes of {path!r} as {names}, but {other} has declared {known}: "
                    "give the parameter or its module another name"
                )
            _declared[path, len(names)] = names, owner
        return module

    return declare


def parameter_axes(path: str, rank: int) -> Axes:
    """Names of the axes of a parameter, or of optimizer state whose path ends like it.

    Args:
      path: names of modules and parameter, separated by "/".
      rank: number of axes.

    Returns:
      A name, or None, for each axis.

    >>> parameter_axes("decoder/layers_0/feed_forward/hidden/kernel", 2)
    ('model', 'hidden')
    """
    parts = path.split("/")
    for start in range(len(parts)):  # the longest end first
        if declared := _declared.get(("/".join(parts[start:]), rank)):
            return declared[0]
    return (None,) * rank
