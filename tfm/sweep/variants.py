"""The variants of a sweep.

The config file of a sweep has a function get_config() and a function get_variants() that yields each
`Variant`. `--config=FILE:NAME` is the config of the variant NAME.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from tfm.errors import UserError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # must also be the name of a folder


@dataclasses.dataclass(frozen=True)
class Variant:
    """A variant of the config of a sweep.

    Attributes:
      name: name of letters, digits, dots, dashes and underscores. Begins with a letter or a digit.
      overrides: {path of a field: value} of the fields that differ, such as {"model.d_model": 1024}.
      published: {name of a score: published value}. The table shows them next to our scores.
    """

    name: str
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    published: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def flags(self) -> list[str]:
        """The overrides as command-line arguments."""
        return [f"--config.{path}={value}" for path, value in self.overrides.items()]


def check_variants(variants: Iterable[Any], path: str) -> list[Variant]:
    """Returns the variants that get_variants() yields, in their order.

    Args:
      variants: the values that get_variants() yields.
      path: path of the config file, for error messages.

    Raises:
      UserError: if a value is not a `Variant`, a name is invalid or occurs twice, or there are no variants.
    """
    found = {}
    for each in variants:
        if not isinstance(each, Variant):
            raise UserError(f"Expected get_variants() in {path} to yield tfm.sweep.Variant, got {each!r}.")
        if not isinstance(each.name, str) or not NAME.fullmatch(each.name):
            raise UserError(
                f"The name of a variant in {path} is also the name of a folder and must consist of letters, "
                f"digits, '.', '-' and '_', got {each.name!r}."
            )
        if each.name in found:
            raise UserError(f"{path} has two variants with the name {each.name!r}. Rename one of them.")
        found[each.name] = each
    if not found:
        raise UserError(f"Expected get_variants() in {path} to yield variants, but it yields none.")
    return list(found.values())
