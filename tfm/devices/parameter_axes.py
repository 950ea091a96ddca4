"""Names for the axes of parameters, so that modules do not depend on the number or the layout of devices.

A module class names the axes of the parameters below it in its attribute `parameter_axes`:

    class SwiGLU(nn.Module):
        parameter_axes = {"gate/kernel": ("model", "hidden"), "output/kernel": ("hidden", "model")}

The keys are paths below the module. Each value has a name or None for each axis of the parameter.
`tfm.devices` maps the names to the axes of a mesh. An axis without a name is not sharded.
"""

import types
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax

Axes = tuple[str | None, ...]
NO_AXES: Mapping[str, Axes] = types.MappingProxyType({})


def record_axes(init: Callable[..., Any], *arguments: Any) -> tuple[Any, dict[str, Axes]]:
    """Computes the shapes of new variables, and records the names of their axes.

    Args:
      init: Function that calls `init` of one or more Linen modules. It must not be a jitted function that JAX
        has traced before, because JAX would not call its modules again.
      *arguments: Arguments of the function. Only their shapes matter.

    Returns:
      The shapes that the function returns, and {path of a parameter in its module: names of its axes}.
    """
    axes: dict[str, Axes] = {}

    def record(call: Callable, arguments: tuple, keywords: dict[str, Any], context: Any) -> Any:
        for path, names in getattr(context.module, "parameter_axes", {}).items():
            axes["/".join((*context.module.path, path))] = names
        return call(*arguments, **keywords)

    with nn.intercept_methods(record):
        return jax.eval_shape(init, *arguments), axes


def find_axes(axes: Mapping[str, Axes], path: str, rank: int) -> Axes:
    """Returns the names of the axes of an array in a tree whose paths end with the paths of parameters.

    Args:
      axes: The second result of `record_axes`.
      path: The names on the way to the array, separated by "/". An array of the optimizer state whose path
        ends with the path of a parameter gets the same names.
      rank: Number of axes of the array.

    Returns:
      A name or None for each axis.

    Examples:
      >>> find_axes({"feed_forward/hidden/kernel": ("model", "hidden")}, "mu/feed_forward/hidden/kernel", 2)
      ('model', 'hidden')
    """
    parts = path.split("/")
    for start in range(len(parts)):  # the longest end first
        names = axes.get("/".join(parts[start:]))
        if names is not None and len(names) == rank:
            return names
    return (None,) * rank
