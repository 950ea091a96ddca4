"""The model families of the core and of all systems."""

import functools
import types
from collections.abc import Mapping

from tfm.family import find_parts
from tfm.huggingface.families import FAMILIES
from tfm.huggingface.family import Family, Target
from tfm.huggingface.targets import TARGETS

PART = "huggingface"  # module of a system with FAMILIES and TARGETS


@functools.cache  # searches all systems
def find_families() -> Mapping[str, Family]:
    """Returns {name of a family in config.json: family} of all families that tfm imports."""
    families = dict(FAMILIES)
    for part in find_parts(PART):
        families |= part.FAMILIES
    return types.MappingProxyType(families)


@functools.cache
def find_targets() -> Mapping[str, Target]:
    """Returns {short name of a model: family that it can become}."""
    targets = dict(TARGETS)
    for part in find_parts(PART):
        targets |= part.TARGETS
    return types.MappingProxyType(targets)
