"""Conversion of configs: frozen dataclasses for the code, ConfigDicts for config files and flags, and JSON.

A config file builds the dataclass of a task and returns `to_config_dict(it)`. The ConfigDict is locked, so
that a typo is an error. The command converts it once, with `from_mapping`. Other code uses no ConfigDict.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tfm.config.fields import (
    LARGEST_INT,
    find_problem,
    hints_of,
    info_of,
    join,
    optional_of,
    raise_all,
    value_class,
)
from tfm.config.names import is_section
from tfm.errors import UserError, suggest
from tfm.io.files import atomic_file, read_limited

if TYPE_CHECKING:
    from ml_collections import config_dict

LARGEST_JSON = 1 << 24  # bytes; a typical config has two thousand


def to_config_dict(config: Any) -> "config_dict.ConfigDict":
    """Converts a frozen dataclass with nested sections to a locked ConfigDict with typed fields."""
    from ml_collections import config_dict  # imported here because commands read their flags without it

    result = config_dict.ConfigDict()
    hints = hints_of(config.__class__)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            result[field.name] = to_config_dict(value)
        elif optional_of(hints[field.name]) or info_of(field).word:  # values of several types
            result[field.name] = config_dict.FieldReference(value, field_type=object)
        else:
            result[field.name] = value
    return result.lock()


def from_mapping(
    cls: type, mapping: "Mapping[str, Any] | config_dict.ConfigDict", path: str = "config"
) -> Any:
    """Converts a ConfigDict or a plain dict to the dataclass `cls`. Its `__post_init__` validates the values.

    If the class of a section depends on the section's `name`, as for models, the `FieldInfo` of its field has
    a `section_class` that finds the class.

    Args:
      cls: the frozen dataclass to create.
      mapping: the values. Missing fields have their defaults.
      path: path of the mapping, for error messages.

    Raises:
      UserError: if fields are unknown or missing, or values have the wrong type or are out of their range.
        The message lists all problems, and the nearest known name for each unknown field.
    """
    problems: list[str] = []
    made = _read(cls, mapping, path, problems)
    raise_all(problems)
    return made


def _read(cls: Any, mapping: Any, path: str, problems: list[str]) -> Any:
    """Reads one section.

    Args:
      cls, mapping, path: see `from_mapping`.
      problems: list that collects the error messages.

    Returns:
      The dataclass, or None if there is a problem.
    """
    before = len(problems)
    if not is_section(mapping):
        problems.append(f"{path} must be a section with fields, got {mapping!r}.")
        return None
    fields = {each.name: each for each in dataclasses.fields(cls)}
    values = {}
    for name in mapping:
        if name not in fields:
            problems.append(f"{path}.{name} does not exist; {suggest(name, fields)}")
            continue
        hint = hints_of(cls)[name]
        values[name] = _read_field(fields[name], hint, mapping[name], f"{path}.{name}", problems)
    problems += [
        f"{path}.{name} must be given: it has no default."
        for name, each in fields.items()
        if name not in mapping and each.default is each.default_factory is dataclasses.MISSING
    ]
    if len(problems) > before:
        return None
    try:
        return cls(**values)
    except UserError as error:  # fields that do not fit together
        problems.append(str(error))
        return None


def _read_field(field: dataclasses.Field, hint: Any, value: Any, path: str, problems: list[str]) -> Any:
    """Returns the converted value of a field, or its section. Appends to `problems`."""
    info = info_of(field)
    try:
        section_class = _section_class(info, hint, value, path)
    except UserError as error:
        problems.append(str(error))
        return None
    if dataclasses.is_dataclass(section_class):
        return _read(section_class, value, path, problems)
    value = _converted(value, hint)
    if problem := find_problem(value, hint, info, path):
        problems.append(problem)
    return value


def section_names(config: Any, path: str = "") -> dict[str, str]:
    """Returns {path of a field `name`: its value} of the sections whose class depends on their name."""
    names = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if info_of(field).section_class:
            names[join(path, f"{field.name}.name")] = value.name
        if dataclasses.is_dataclass(value):
            names |= section_names(value, join(path, field.name))
    return names


def defaults_of_name(config: Any, field: str, name: str, path: str) -> Any:
    """Returns the defaults of a section for a name, for example the name of another optimizer.

    Args:
      config: the dataclass that has the section.
      field: name of the field of the section, whose class depends on its name.
      name: the name.
      path: path of the section, for error messages.

    Raises:
      UserError: if the name is unknown.
    """
    info = next(info_of(each) for each in dataclasses.fields(config) if each.name == field)
    section = {"name": name}
    return from_mapping(_section_class(info, Any, section, field), section, path)


def save(config: Any, path: str) -> None:
    """Writes a dataclass as JSON. The file is complete or does not change.

    Raises:
      UserError: if an I/O error occurs.
    """
    with atomic_file(path, "w") as file:
        json.dump(dataclasses.asdict(config), file, indent=2)
        file.write("\n")


def load(path: str) -> dict[str, Any]:
    """Reads the mapping that `save` wrote. An editor may have added a byte order mark.

    Raises:
      UserError: if the file does not exist, has more than `LARGEST_JSON` bytes, is a pipe, a socket or a
        device, or is not a JSON object.
      OSError: if the file cannot be read.
    """
    try:
        mapping = json.loads(read_limited(path, LARGEST_JSON).decode("utf-8-sig"))
    except FileNotFoundError:
        raise UserError(
            f"Expected the config of a run at {path}, but there is none. Check the folder."
        ) from None
    except UserError:  # the file is too large
        raise
    except (ValueError, RecursionError) as error:  # a ValueError also if an integer has thousands of digits
        raise UserError(f"Expected JSON in {path}, but it does not parse ({error}).") from None
    if not isinstance(mapping, dict):
        raise UserError(f"Expected an object with fields in {path}, got {type(mapping).__name__}.")
    return mapping


def _section_class(info: Any, hint: Any, section: Any, path: str) -> Any:
    """Returns the class of a field's value. `FieldInfo.section_class` decides if it is set."""
    if info.section_class is None:
        return hint
    if not is_section(section) or "name" not in section:
        raise UserError(f"{path} must be a section with the field 'name', got {section!r}.")
    section_type = info.section_class(section)
    if not isinstance(section_type, type) or not dataclasses.is_dataclass(section_type):
        raise UserError(
            f"{path}.name={section['name']} must name a dataclass of its fields, got {section_type!r}."
        )
    return section_type


def _converted(value: Any, hint: Any) -> Any:
    """Converts an int to a float and a list to a tuple if the type asks for it.

    JSON has no tuples and may write 1.0 as 1.
    """
    kind = value_class(hint)
    if kind is float and type(value) is int and abs(value) <= LARGEST_INT:
        return float(value)
    if kind is tuple and isinstance(value, list):
        return tuple(value)
    return value
