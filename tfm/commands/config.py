"""Shows a config, or the difference of two: tfm config show CONFIG, tfm config diff CONFIG CONFIG

A CONFIG is a Python file, FILE:VARIANT of a sweep, the name of a config that tfm ships, a config.json, or the
folder of a run or an export. `show` prints each field as the flag that sets it. `show --changed` prints only
the fields that differ from the defaults of the task. `diff` prints the fields that differ between two
configs, with both values.
"""

import os
from typing import Any

from tfm.commands.command import command
from tfm.commands.config_files import read_config_file
from tfm.commands.options import Config
from tfm.commands.overrides import override
from tfm.config import section_names, walk_fields
from tfm.errors import UserError
from tfm.workdir import runs

ACTIONS = {"show": 1, "diff": 2}  # number of configs that each action needs


@command
def main(options: Config) -> None:
    """Prints fields."""
    paths = [options.first, *options.others]
    if ACTIONS.get(options.action) != len(paths):
        given = " ".join([options.action, *paths])
        raise UserError(f"Expected show CONFIG or diff CONFIG CONFIG, got {given}.")
    if options.action == "diff" and options.changed:
        raise UserError("--changed is only for show. diff always prints only the fields that differ.")
    first, *others = map(read, paths)
    lines = describe_difference(first, *others) if others else describe_fields(first, options.changed)
    print("\n".join(lines) or "no field differs")


def read(path: str) -> Any:
    """Reads the config at a path, or with a name that tfm ships, as the frozen dataclass of its task."""
    if os.path.isdir(path):
        return runs.open_folder(path).config
    base, variant = read_config_file(path)
    return override(base, variant).config


def describe_fields(config: Any, changed: bool = False) -> list[str]:
    """Returns each field as the flag that sets it.

    Args:
      config: the config.
      changed: return only the fields that differ from the defaults of the config's task, model and so on.
    """
    values = _values_of(config)
    if changed:
        defaults = type(config)()
        plain = section_names(defaults)
        names = {path: name for path, name in section_names(config).items() if name != plain.get(path, name)}
        flags = [f"--config.{path}={name}" for path, name in names.items()]
        named = _values_of(override(defaults, flags).config)
        values = {path: value for path, value in values.items() if path in names or named[path] != value}
    return [f"--config.{path}={value}" for path, value in values.items()]


def describe_difference(first: Any, second: Any) -> list[str]:
    """Returns a line for each field that differs. A field that a config does not have is shown as "-"."""
    old, new = _values_of(first), _values_of(second)
    paths = [path for path in {**old, **new} if old.get(path, ...) != new.get(path, ...)]
    return [f"{path}: {old.get(path, '-')} -> {new.get(path, '-')}" for path in paths]


def _values_of(config: Any) -> dict[str, Any]:
    """Returns {path of a field: value} of all fields of a config."""
    return {leaf.path: leaf.value for leaf in walk_fields(config)}
