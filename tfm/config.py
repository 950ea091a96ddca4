"""Configs at the edge: ml_collections for people to write and override, frozen dataclasses for the code.

A config file builds a task's dataclass and returns `to_config_dict(it)`: locked, so that a typo is an error.
The command reads it once, through `from_mapping`, and below that nobody sees a ConfigDict.
"""

import dataclasses
import difflib
import functools
import importlib
import json
import logging
import math
import pkgutil
import types
import typing
from collections.abc import Mapping

from ml_collections import config_dict

from tfm.errors import UserError
from tfm.files import read_whole, whole_file

LARGEST_INT = (1 << 63) - 1
LARGEST_JSON = 1 << 24  # bytes; a config has two thousand
log = logging.getLogger(__name__)


def to_config_dict(config):
    """A frozen dataclass, sections nested in it -> a locked ConfigDict with typed fields."""
    result = config_dict.ConfigDict()
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            result[field.name] = to_config_dict(value)
        elif _optional(hints[field.name]):
            result[field.name] = config_dict.placeholder(_optional(hints[field.name]))
            result[field.name] = value
        else:
            result[field.name] = value
    return result.lock()


def from_mapping(cls, mapping, path="config"):
    """A ConfigDict or plain dict -> `cls`, whose `__post_init__` validates the values.

    A section whose class depends on its own content (a model by name) says how to find it: its field has the
    metadata {"section_class": function of the section's mapping}, which has a name.

    Raises:
      UserError: an unknown field (with the nearest known one), a missing section, or a value of another type.
    """
    if not isinstance(mapping, Mapping | config_dict.ConfigDict):
        raise UserError(f"{path} must be a section with fields, got {mapping!r}.")
    mapping = _upgraded(cls, mapping, path)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for name in mapping:
        if name not in fields:
            raise UserError(unknown_field(f"{path}.{name}", name, fields))
    hints = typing.get_type_hints(cls)
    values = {}
    for name in mapping:
        section_class = _section_class(fields[name], hints[name], mapping[name], f"{path}.{name}")
        if dataclasses.is_dataclass(section_class):
            values[name] = from_mapping(section_class, mapping[name], f"{path}.{name}")
        else:
            values[name] = _checked(mapping[name], section_class, f"{path}.{name}")
    return cls(**values)


def _upgraded(cls, mapping, path):
    """What an older version wrote, as this one means it: a class whose fields changed has `upgrade`."""
    if not hasattr(cls, "upgrade"):
        return mapping
    mapping, changed = cls.upgrade(mapping)
    if changed:
        _warn_once(f"{path} was written by an older version: {changed}.")
    return mapping


@functools.cache
def _warn_once(message):
    """A command reads a config several times."""
    log.warning(message)


def unknown_field(path, name, known):
    """The sentence for a field that is not there."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"known fields: {', '.join(sorted(known)) or 'none'}."
    return f"{path} does not exist; {hint}"


def find_module(package, name, path):
    """The module `name` of a package, imported; the config field `path` asks for it.

    Raises:
      UserError: the package has no such module.
    """
    known = [module.name for module in pkgutil.iter_modules(package.__path__)]
    if name not in known:
        raise UserError(f"{path} must be one of {known}, got {name!r}.")
    return importlib.import_module(f"{package.__name__}.{name}")


def save(config, path):
    """Writes a dataclass as JSON, all of it or nothing.

    Raises:
      UserError: the machine refuses.
    """
    with whole_file(path, "w") as file:
        json.dump(dataclasses.asdict(config), file, indent=2)
        file.write("\n")


def load(path):
    """The mapping that `save` wrote.

    Raises:
      UserError: no such file, far too large a one, or not a JSON object.
    """
    try:
        mapping = json.loads(read_whole(path, LARGEST_JSON).decode("utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"Expected the config of a run at {path}, but there is none: check the folder."
        ) from None
    except (ValueError, RecursionError) as error:  # an int of thousands of digits is a bare ValueError
        raise UserError(f"Expected JSON in {path}, but it does not parse ({error}).") from None
    if not isinstance(mapping, dict):
        raise UserError(f"Expected an object with fields in {path}, got {type(mapping).__name__}.")
    return mapping


def _section_class(field, hint, section, path):
    """The class of a field's value; where the metadata finds it by the section's name, by that."""
    if "section_class" not in field.metadata:
        return hint
    if not isinstance(section, Mapping | config_dict.ConfigDict) or "name" not in section:
        raise UserError(f"{path} must be a section with the field 'name', got {section!r}.")
    return field.metadata["section_class"](section)


def _optional(hint):
    """T of `T | None`, else None."""
    if not isinstance(hint, types.UnionType):
        return None
    return next(kind for kind in typing.get_args(hint) if kind is not type(None))


def _checked(value, hint, path):
    if value is None and _optional(hint):
        return None
    kind = _optional(hint) or hint
    kind = typing.get_origin(kind) or kind
    if isinstance(value, int) and abs(value) > LARGEST_INT:
        raise UserError(f"{path} must be a number of at most 64 bits, got one of {value.bit_length()}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{path} must be a finite number, got {value}.")
    if isinstance(value, str) and "\0" in value:
        raise UserError(f"{path} must be text without null bytes, got {value!r}.")
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is tuple and isinstance(value, list):
        return tuple(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UserError(f"{path} must be of type {kind.__name__}, got {value!r}.")
    return value


def difference(old, new, ignore=()):
    """The fields in which two values or dataclasses of one class differ, for a sentence; "" for none."""
    if not dataclasses.is_dataclass(old) or type(old) is not type(new):
        return "" if old == new else f"{old!r} there, {new!r} now"
    names = [field.name for field in dataclasses.fields(old) if field.name not in ignore]
    changed = [name for name in names if getattr(old, name) != getattr(new, name)]
    return ", ".join(f"{name} {getattr(old, name)!r} there, {getattr(new, name)!r} now" for name in changed)
