"""The models of the core, and the search for any model by the name that a config gives it.

The module of a model defines `Config`, a frozen dataclass, and `Model`, a Linen module. A model that reads
tokens is created by `Model(config, vocabulary_size=V)`.
"""

from typing import Any

from tfm.config import field, find_module
from tfm.errors import UserError
from tfm.family import MODELS
from tfm.models.transformer import Transformer, TransformerConfig

__all__ = ["Transformer", "TransformerConfig", "check_positions", "find", "model_field"]


def find(name: str) -> Any:
    """Returns the module, or another object, that has the `Config` and the `Model` with this name.

    Args:
      name: A short name in `tfm.family`, or "package.module" or "package.module:attribute" for a model
        outside tfm.

    Raises:
      UserError: If no such model exists, or if its module is not allowed or cannot be imported.
    """
    return find_module(MODELS, name, "config.model.name", needs=("Config", "Model"))


def model_field(default: Any, text: str = "Config of the model that model.name selects.") -> Any:
    """Returns the field `model` for the config of a task.

    The field's value is an instance of the `Config` class of the model that its `name` selects.

    Args:
      default: The `Config` class of the default model, an instance of it, or the short name of the model. A
        task of the core gives the name, because it imports no system.
      text: Help of the field.
    """
    make = (lambda: find(default).Config()) if isinstance(default, str) else default
    return field(make, text, section_class=lambda section: find(section["name"]).Config)


def check_positions(model: Any, name: str, tokens: int) -> None:
    """Checks that rows of tokens fit into the positions of a model.

    Args:
      model: Config of the model. Its `max_length` is the number of its positions, or None for no limit.
      name: Name of the field that decides the length of the rows.
      tokens: Length of the rows.

    Raises:
      UserError: If the rows are longer.
    """
    longest = getattr(model, "max_length", None)
    if longest is not None and tokens > longest:
        offset = getattr(model, "random_start", 0)
        positions = "model.max_positions - model.random_start" if offset else "model.max_positions"
        raise UserError(
            f"Expected {name} ({tokens:,}) to be at most the positions of the model ({positions}="
            f"{longest:,}). Decrease {name} to {longest:,}, or increase model.max_positions to "
            f"{tokens + offset:,}."
        )
