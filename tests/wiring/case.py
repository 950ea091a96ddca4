"""A case of the tests of fields: a small config section, and an observer of what its fields change."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

# {part: value}. The values can be compared.
Observation = dict[str, Any]
Observer = Callable[[Any], Observation]


class Case(NamedTuple):
    """A section, and the function that observes what its fields change."""

    section: Any
    observe: Observer


def make_cases(base: Any, observe: Observer, *changes: dict[str, Any]) -> list[Case]:
    """Returns the case of a section, and a case for each of the changes to it."""
    return [Case(dataclasses.replace(base, **change), observe) for change in ({}, *changes)]
