"""One file a model. Each defines `Config`, a frozen dataclass, and `Model`, a Linen module that takes it."""

import sys
from types import ModuleType

from tfm.config import find_module
from tfm.models.transformer import Transformer, TransformerConfig

__all__ = ["Transformer", "TransformerConfig", "find"]


def find(name: str) -> ModuleType:
    """The module of the model `name`.

    Raises:
      UserError: there is no such model.
    """
    return find_module(sys.modules[__name__], name, "config.model.name")
