"""One file a model. Each defines `Config`, a frozen dataclass, and `Model`, a Linen module that takes it."""

import importlib
import pkgutil

from tfm.errors import UserError
from tfm.models.transformer import Transformer, TransformerConfig

__all__ = ["Transformer", "TransformerConfig", "find"]


def find(name):
    """The module of the model `name`.

    Raises:
      UserError: there is no such model.
    """
    known = [module.name for module in pkgutil.iter_modules(__path__)]
    if name not in known:
        raise UserError(f"config.model.name must be one of {known}, got {name!r}.")
    return importlib.import_module(f"tfm.models.{name}")
