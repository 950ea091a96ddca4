"""Configs at the edge: ml_collections for people to write and override, frozen dataclasses for the code.

A config file builds a task's dataclass and returns `to_config_dict(it)`: locked, so that a typo is an error.
The command reads it once, through `from_mapping`, and below that nobody sees a ConfigDict.

What each field means and which values it takes stands beside its default: see `tfm.fields`.
"""

import dataclasses
import difflib
import functools
import importlib
import json
import logging
import pkgutil
from collections.abc import Mapping

from ml_collections import config_dict

from tfm.errors import UserError
from tfm.fields import LARGEST_INT, hints_of, info_of, kind_of, optional_of, problem_of, raise_all
from tfm.runtime.files import read_whole, whole_file

LARGEST_JSON = 1 << 24  # bytes; a config has two thousand
log = logging.getLogger(__name__)


def to_config_dict(config):
    """A frozen dataclass, sections nested in it -> a locked ConfigDict with typed fields."""
    result = config_dict.ConfigDict()
    hints = hints_of(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            result[field.name] = to_config_dict(value)
        elif optional_of(hints[field.name]):
            result[field.name] = config_dict.placeholder(optional_of(hints[field.name]))
            result[field.name] = value
        else:
            result[field.name] = value
    return result.lock()


def from_mapping(cls, mapping, path="config"):
    """A ConfigDict or plain dict -> `cls`, whose `__post_init__` validates the values.

    A section whose class depends on its own content (a model by name) says how to find it: the `FieldInfo` of
    its field has a `section_class`. Such a section has a name.

    Raises:
      UserError: names all unknown fields (with the nearest known one), missing sections and values of another
        type or out of their range.
    """
    problems = []
    made = _read(cls, mapping, path, problems)
    raise_all(problems)
    return made


def _read(cls, mapping, path, problems):
    """`from_mapping`, with what is wrong added to `problems`; None where something is."""
    before = len(problems)
    if not isinstance(mapping, Mapping | config_dict.ConfigDict):
        problems.append(f"{path} must be a section with fields, got {mapping!r}.")
        return None
    mapping = _upgraded(cls, mapping, path)
    fields = {each.name: each for each in dataclasses.fields(cls)}
    values = {}
    for name in mapping:
        if name not in fields:
            problems.append(unknown_field(f"{path}.{name}", name, fields))
            continue
        values[name] = _read_field(
            fields[name], hints_of(cls)[name], mapping[name], f"{path}.{name}", problems
        )
    if len(problems) > before:
        return None
    try:
        return cls(**values)
    except UserError as error:  # fields that do not fit together
        problems.append(str(error))
        return None


def _read_field(field, hint, value, path, problems):
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


def _section_class(info, hint, section, path):
    """The class of a field's value; where the field finds it by the section's name, by that."""
    if info.section_class is None:
        return hint
    if not isinstance(section, Mapping | config_dict.ConfigDict) or "name" not in section:
        raise UserError(f"{path} must be a section with the field 'name', got {section!r}.")
    return info.section_class(section)


def _converted(value, hint):
    """JSON and ConfigDicts know lists in place of tuples, and write 1.0 as 1."""
    kind = kind_of(hint)
    if kind is float and type(value) is int and abs(value) <= LARGEST_INT:
        return float(value)
    if kind is tuple and isinstance(value, list):
        return tuple(value)
    return value
