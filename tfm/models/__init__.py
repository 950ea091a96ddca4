"""One file a model. Each defines `Config`, a frozen dataclass, and `Model`, a Linen module.

A model of tokens is made by `Model(config, vocabulary_size=V)`.
"""

import sys
from typing import Any

from tfm.config import find_by_name
from tfm.fields import field
from tfm.models.transformer import Transformer, TransformerConfig

__all__ = ["Transformer", "TransformerConfig", "find", "model_field"]


def find(name: str) -> Any:
    """What has the `Config` and the `Model` of a name.

    Args:
      name: a module of this package, or "package.module:attribute" of the user's own.

    Raises:
      UserError: there is no such model.
    """
    return find_by_name(sys.modules[__name__], name, "config.model.name", needs=("Config", "Model"))


def model_field(default: type, text: str = "The model that model.name names.") -> Any:
    """The field `model` of a task's config, whose class is that of the model that its `name` names.

    Args:
      default: the `Config` of a model.
      text: help.
    """
    return field(default, text, section_class=lambda section: find(section["name"]).Config)
