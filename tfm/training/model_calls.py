"""The call of a Flax model within a loss."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn

from tfm.training.task import Context, Variables


def apply_model(
    model: nn.Module, variables: Variables, *inputs: Any, context: Context, **keywords: Any
) -> tuple[Any, Mapping[str, Any]]:
    """Calls a model as a loss calls it: with dropout and updates of its state in training only.

    Args:
      model: takes `train`.
      variables: "params" and the collections of its state, if it has any.
      inputs, keywords: further arguments of the model.
      context: of the loss.

    Returns:
      (output of the model, {collection: tree} of the state that changed).
    """
    rngs = {"dropout": context.rng} if context.train else None
    keywords |= {"train": context.train, "rngs": rngs}
    collections = [name for name in variables if name != "params"]
    if not context.train or not collections:
        return model.apply(variables, *inputs, **keywords), {}
    return model.apply(variables, *inputs, mutable=collections, **keywords)
