"""Configs: ConfigDicts of ml_collections for config files and flags, frozen dataclasses for the code.

A config file builds the dataclass of a task and returns `to_config_dict(it)`. The ConfigDict is locked, so
that a typo is an error. The command converts it once, with `from_mapping`. Other code uses no ConfigDict.

Each field declares its meaning and its range next to its default, see `tfm.fields`.
"""

import dataclasses
import difflib
import importlib
import json
import os
import pkgutil
import re
import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from ml_collections import config_dict

from tfm.errors import UserError
from tfm.fields import LARGEST_INT, hints_of, info_of, join, kind_of, optional_of, problem_of, raise_all
from tfm.io.files import atomic_file, read_limited

LARGEST_JSON = 1 << 24  # bytes; a typical config has two thousand
IDENTIFIER = r"[A-Za-z_]\w*"
MODULE = re.compile(rf"{IDENTIFIER}(\.{IDENTIFIER})*", re.ASCII)
# "package.module:attribute" or "package.module": names of modules outside tfm.
DOTTED = re.compile(rf"{MODULE.pattern}(\.{IDENTIFIER}|:{IDENTIFIER})", re.ASCII)
NAME_FIELDS = ("name", "task", "kind", "trackers")
allowed_modules: set[str] = set()


def to_config_dict(config: Any) -> config_dict.ConfigDict:
    """Converts a frozen dataclass with nested sections to a locked ConfigDict with typed fields."""
    result = config_dict.ConfigDict()
    hints = hints_of(config.__class__)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            result[field.name] = to_config_dict(value)
        elif optional_of(hints[field.name]):
            result[field.name] = config_dict.placeholder(optional_of(hints[field.name]))
            result[field.name] = value
        elif info_of(field).word:  # a number or a text
            result[field.name] = config_dict.FieldReference(value, field_type=object)
        else:
            result[field.name] = value
    return result.lock()


def from_mapping(cls: type, mapping: Mapping[str, Any] | config_dict.ConfigDict, path: str = "config") -> Any:
    """Converts a ConfigDict or a plain dict to the dataclass `cls`. Its `__post_init__` validates the values.

    If the class of a section depends on the section's `name`, as for models, the `FieldInfo` of its field has
    a `section_class` that finds the class.

    Args:
      cls: the frozen dataclass to create.
      mapping: the values. Missing fields have their defaults.
      path: path of the mapping, for error messages.

    Raises:
      UserError: if fields are unknown or missing, or values have another type or are out of their range. The
        message lists all problems, and the nearest known name for each unknown field.
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
    if not _is_section(mapping):
        problems.append(f"{path} must be a section with fields, got {mapping!r}.")
        return None
    fields = {each.name: each for each in dataclasses.fields(cls)}
    values = {}
    for name in mapping:
        if name not in fields:
            problems.append(unknown_field(f"{path}.{name}", name, fields))
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
    if problem := problem_of(value, hint, info, path):
        problems.append(problem)
    return value


def unknown_field(path: str, name: str, known: Iterable[str]) -> str:
    """Returns the error message for an unknown field, with the nearest known name.

    Args:
      path: full path of the field.
      name: the unknown name.
      known: the known names in its place.
    """
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"known fields: {', '.join(sorted(known)) or 'none'}."
    return f"{path} does not exist; {hint}"


def find_by_name(
    known: ModuleType | Mapping[str, Any], name: str, path: str, needs: tuple[str, ...] = ()
) -> Any:
    """Returns the object that a config field names: a part of tfm, or a part of the user's package.

    Args:
      known: a package of tfm whose modules have the short names, or a table {short name: value}.
      name: a short name, "package.module:attribute", or "package.module".
      path: path of the field, for the error message.
      needs: attributes that a part of the user's package must have.

    Raises:
      UserError: if there is no such part, if its module is not allowed or cannot be imported, or if it does
        not have an attribute of `needs`.
    """
    if isinstance(known, Mapping):
        names = list(known)
    else:
        names = [module.name for module in pkgutil.iter_modules(known.__path__)]
    if name in names:
        if isinstance(known, Mapping):
            return known[name]
        return importlib.import_module(f"{known.__name__}.{name}")
    if not is_dotted(name):
        raise UserError(
            f"{path} must be one of {names}, or 'package.module:attribute' of your own package, got {name!r}."
        )
    found = _import(name, path)
    missing = [attribute for attribute in needs if not hasattr(found, attribute)]
    if missing:
        raise UserError(f"{path}={name} must have {' and '.join(needs)}, but it has no {missing[0]}.")
    return found


def is_dotted(name: Any) -> bool:
    """Returns whether a value is the name of an object outside tfm, such as "my_lab.models:gru"."""
    return isinstance(name, str) and bool(DOTTED.fullmatch(name))


def allow_modules(names: Iterable[str]) -> None:
    """Allows configs to import these modules and their submodules.

    Importing a module runs its code, and a config.json may come from somebody else. So tfm imports foreign
    modules only if the command line or a config file in Python names them.

    Args:
      names: names such as "my_lab.models" or "my_lab.models:gru".

    Raises:
      UserError: if a name is not the name of a module.
    """
    for name in names:
        module = name.partition(":")[0]
        if not MODULE.fullmatch(module):
            raise UserError(f"Expected the name of a module, such as my_lab.models, got {name!r}.")
        allowed_modules.add(module)


def allow_current_folder() -> None:
    """Lets Python import modules from the current folder, as `python FILE` does for the folder of FILE."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def dotted_names(mapping: Mapping[str, Any] | config_dict.ConfigDict) -> list[str]:
    """Returns all names of objects outside tfm that a config contains, in all its sections."""
    found = []
    for key in mapping:
        if _is_section(mapping[key]):
            found += dotted_names(mapping[key])
        elif key in NAME_FIELDS:
            value = mapping[key]
            found += filter(is_dotted, value if isinstance(value, tuple | list) else [value])
    return found


def _import(name: str, path: str) -> Any:
    """Imports the module or attribute with a dotted name, from `sys.path` or the current folder.

    Raises:
      UserError: if the module is not allowed, cannot be imported, or has no such attribute.
    """
    module, _, attribute = name.partition(":")
    if not any(f"{module}.".startswith(f"{allowed}.") for allowed in allowed_modules):
        raise UserError(
            f"{path} names {name!r}, which is not part of tfm and is not imported by default. If you trust "
            f"it, give --import={module}, or call tfm.config.allow_modules(['{module}'])."
        )
    allow_current_folder()
    try:
        found = importlib.import_module(module)
    except Exception as error:
        raise UserError(_import_problem(module, path, error)) from error
    if attribute and not hasattr(found, attribute):
        raise UserError(f"{path}={name}: the module {module!r} has no {attribute!r}.")
    return getattr(found, attribute) if attribute else found


def _import_problem(module: str, path: str, error: Exception) -> str:
    """Returns the error message for a module that cannot be imported."""
    absent = error.name if isinstance(error, ModuleNotFoundError) else None
    if absent and f"{module}.".startswith(f"{absent}."):
        return (
            f"{path} names the module {module!r}, but there is no {absent!r} on sys.path or in the current "
            "folder; an attribute of a module is written 'package.module:attribute'."
        )
    return f"{path}: importing the module {module!r} fails: {type(error).__name__}: {error}."


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
    """Reads the mapping that `save` wrote.

    Raises:
      UserError: if the file does not exist, has more than `LARGEST_JSON` bytes, or is not a JSON object.
    """
    try:
        mapping = json.loads(read_limited(path, LARGEST_JSON).decode("utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"Expected the config of a run at {path}, but there is none. Check the folder."
        ) from None
    except UserError:  # the file is too large
        raise
    except (
        ValueError,
        RecursionError,
    ) as error:  # an integer with thousands of digits raises a plain ValueError
        raise UserError(f"Expected JSON in {path}, but it does not parse ({error}).") from None
    if not isinstance(mapping, dict):
        raise UserError(f"Expected an object with fields in {path}, got {type(mapping).__name__}.")
    return mapping


def _section_class(info: Any, hint: Any, section: Any, path: str) -> Any:
    """Returns the class of a field's value. `FieldInfo.section_class` decides if it is set."""
    if info.section_class is None:
        return hint
    if not _is_section(section) or "name" not in section:
        raise UserError(f"{path} must be a section with the field 'name', got {section!r}.")
    found = info.section_class(section)
    if not isinstance(found, type) or not dataclasses.is_dataclass(found):
        raise UserError(f"{path}.name={section['name']} must name a dataclass of its fields, got {found!r}.")
    return found


def _is_section(value: Any) -> bool:
    """Returns whether a value is a mapping."""
    return isinstance(value, Mapping | config_dict.ConfigDict)


def _converted(value: Any, hint: Any) -> Any:
    """Converts an int to a float and a list to a tuple if the type asks for it.

    JSON has no tuples and may write 1.0 as 1.
    """
    kind = kind_of(hint)
    if kind is float and type(value) is int and abs(value) <= LARGEST_INT:
        return float(value)
    if kind is tuple and isinstance(value, list):
        return tuple(value)
    return value
