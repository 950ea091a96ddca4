"""The runs of a sweep: variants of one config, which its file names.

The config file of a sweep has, beside get_config(), a function get_variants() that yields each `Variant`.
`--config=FILE:NAME` is the config of one of them.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from tfm.errors import UserError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # a folder has this name


@dataclasses.dataclass(frozen=True)
class Variant:
    """A run of a sweep, by what differs from the config.

    Attributes:
      name: of letters, digits, dots, dashes and underscores.
      overrides: {path of a field: value}, such as {"model.d_model": 1024}.
      published: {name of a score: value} that others reported for it, to stand beside its own.
    """

    name: str
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    published: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def flags(self) -> list[str]:
        """The overrides as arguments of a command."""
        return [f"--config.{path}={value}" for path, value in self.overrides.items()]


def check_variants(variants: Iterable[Any], path: str) -> list[Variant]:
    """What get_variants() of the file `path` yields, in its order.

    Raises:
      UserError: something is not a `Variant`, or two have one name.
    """
    found = {}
    for each in variants:
        if not isinstance(each, Variant):
            raise UserError(f"Expected get_variants() in {path} to yield tfm.sweep.Variant, got {each!r}.")
        if not isinstance(each.name, str) or not NAME.fullmatch(each.name):
            raise UserError(
                f"The name of a variant in {path} must be of letters, digits, '.', '-' and '_', as a folder "
                f"is called after it, got {each.name!r}."
            )
        if each.name in found:
            raise UserError(f"{path} has two variants of the name {each.name!r}: rename one.")
        found[each.name] = each
    if not found:
        raise UserError(f"Expected get_variants() in {path} to yield variants, but it yields none.")
    return list(found.values())
