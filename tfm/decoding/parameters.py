"""Parameters in the form that is fastest for decoding, and ensembles of several models' parameters.

`search_parameters` converts the parameters once, and `apply_model` uses them for all batches.
"""

import dataclasses
import functools
from typing import Any, TypeVar

import flax.linen as nn
import jax

Params = Any  # a tree of parameters
Ensemble = tuple[Params, ...]  # the parameters of several models that decode together
Model = TypeVar("Model", bound=nn.Module)


def as_ensemble(params: Params | Ensemble) -> Ensemble:
    """Returns the members of an ensemble, or a tuple of one member for the parameters of one model."""
    return params if isinstance(params, tuple) else (params,)


def search_parameters(params: Params, dtype: str = "") -> Params:
    """Converts parameters for `apply_model`.

    Args:
      params: The parameters of one model.
      dtype: "float32" or "bfloat16". Empty keeps the dtype of each parameter.
    """
    if dtype:
        return _cast_all(params, dtype)
    # Arrays of JAX stay where they are, because several hosts may divide them.
    return jax.tree.map(lambda x: x if isinstance(x, jax.Array) else jax.device_put(x), params)


@functools.partial(jax.jit, static_argnums=1)
def _cast_all(params: Params, dtype: str) -> Params:
    """Converts the dtype of all parameters."""
    return jax.tree.map(lambda x: x.astype(dtype), params)


def with_dtype(model: Model, dtype: str) -> Model:
    """Returns the model with the compute dtype that fits `search_parameters` of this dtype."""
    if not dtype:
        return model
    return model.clone(config=dataclasses.replace(model.config, dtype=dtype))


def apply_model(model: nn.Module, params: Params, *arguments: Any, **options: Any) -> Any:
    """Calls `model.apply` with parameters that `search_parameters` has converted."""
    return model.apply({"params": params}, *arguments, **options)
