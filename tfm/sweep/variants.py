"""The variants of a sweep.

The config file of a sweep has a function get_config() and a function get_variants() that yields each
`Variant`. `--config=FILE:NAME` is the config of the variant NAME.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tfm.errors import UserError
from tfm.io.lock import LOCK_FILE
from tfm.workdir.compiled_programs import COMPILED_FOLDER

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # must also be the name of a folder
TABLE_FILE = "table.md"
RESERVED_NAMES = (TABLE_FILE, COMPILED_FOLDER, LOCK_FILE)  # entries of the sweep's own folder
SEED = "training.seed"
PARAMETERS = "parameters"  # key in `Variant.published` of the number of parameters; the number is no score


@dataclasses.dataclass(frozen=True)
class Variant:
    """A variant of the config of a sweep.

    Attributes:
      name: name of letters, digits, dots, dashes and underscores. Begins with a letter or a digit.
      overrides: {path of a field: value} of the fields that differ, such as {"model.d_model": 1024}.
      published: {name of a score: published value}. The table shows them next to our scores. The key
        "parameters" is the published number of parameters.
    """

    name: str
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    published: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def flags(self) -> list[str]:
        """The overrides as command-line arguments."""
        return [f"--config.{path}={value}" for path, value in self.overrides.items()]


def check_variants(variants: Iterable[Any], path: str) -> list[Variant]:
    """Returns the variants that get_variants() yields, in their order, with plain Python values.

    Args:
      variants: the values that get_variants() yields.
      path: path of the config file, for error messages.

    Raises:
      UserError: if a value is not a `Variant`, a name is invalid, reserved or occurs twice, overrides or
        published scores are not of the types that `Variant` describes, a variant sets the seed, or there are
        no variants.
    """
    checked: dict[str, Variant] = {}
    for variant in variants:
        if not isinstance(variant, Variant):
            raise UserError(f"Expected get_variants() in {path} to yield tfm.sweep.Variant, got {variant!r}.")
        _check_name(variant.name, checked, path)
        where = f"The variant {variant.name!r} in {path}"
        overrides = _plain_mapping(variant.overrides, "overrides", where)
        if SEED in overrides:
            raise UserError(
                f"{where} sets {SEED}, but a sweep trains each variant with --seeds seeds. Leave it out, and "
                f"set the first seed with --config.{SEED}."
            )
        published = _plain_mapping(variant.published, "published", where)
        for name, value in published.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise UserError(f"{where} must have a number as the published {name}, got {value!r}.")
        checked[variant.name] = Variant(variant.name, overrides, published)
    if not checked:
        raise UserError(f"Expected get_variants() in {path} to yield variants, but it yields none.")
    return list(checked.values())


def _check_name(name: Any, earlier: Mapping[str, Variant], path: str) -> None:
    """Raises a UserError if a name cannot be the folder of a variant, or an earlier variant has it."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise UserError(
            f"The name of a variant in {path} is also the name of a folder and must consist of letters, "
            f"digits, '.', '-' and '_', got {name!r}."
        )
    if name in RESERVED_NAMES:
        raise UserError(f"A sweep uses the name {name!r} in its folder. Rename this variant in {path}.")
    if name in earlier:
        raise UserError(f"{path} has two variants with the name {name!r}. Rename one of them.")


def _plain_mapping(mapping: Any, name: str, where: str) -> dict[str, Any]:
    """Returns an attribute of a variant with plain values, or raises a UserError that begins with `where`."""
    if not isinstance(mapping, Mapping) or not all(isinstance(key, str) for key in mapping):
        raise UserError(f"{where} must have {name} {{text: value}}, got {mapping!r}.")
    return {key: _plain(value, f"{where}: {key}") for key, value in mapping.items()}


def _plain(value: Any, where: str) -> Any:
    """Returns a value with NumPy scalars and arrays as Python values, or raises a UserError."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return tuple(_plain(element, where) for element in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UserError(
        f"{where} must be a number, a text, True, False, None or a tuple of these, got {value!r}."
    )
