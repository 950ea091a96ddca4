"""Shows a config, or the difference of two: tfm config show CONFIG, tfm config diff CONFIG CONFIG

A CONFIG is a Python file, FILE:VARIANT of a sweep, the name of a config that tfm ships, a config.json, or the
folder of a run or an export. `show` prints each field as the flag that sets it. `show --changed` prints only
the fields that differ from the defaults of the task. `diff` prints the fields that differ between two
configs, with both values.
"""

import os
from typing import Any

from tfm import config
from tfm.commands.command import command
from tfm.commands.config_files import read_config_file
from tfm.commands.options import Config
from tfm.commands.overrides import override
from tfm.config import walk_fields
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
    configs = [read(path) for path in paths]
    if options.action == "diff":
        lines = describe_difference(*map(values_of, configs))
    else:
        lines = describe_fields(configs[0], changed=options.changed)
    print("\n".join(lines) or "no field differs")


def read(path: str) -> Any:
    """Reads the config at a path, or with a name that tfm ships, as the frozen dataclass of its task."""
    if os.path.isdir(path):
        return runs.open_folder(path).config
    base, variant = read_config_file(path)
    return override(base, variant).config


def values_of(chosen: Any) -> dict[str, Any]:
    """Returns {path of a field: value} of all fields of a config."""
    return {leaf.path: leaf.value for leaf in walk_fields(chosen)}


def describe_fields(chosen: Any, *, changed: bool = False) -> list[str]:
    """Returns each field as the flag that sets it.

    Args:
      chosen: the config.
      changed: return only the fields that differ from the defaults of the config's task, model and so on.
    """
    found = values_of(chosen)
    if changed:
        defaults = values_of(defaults_like(chosen))
        names = chosen_names(chosen)
        found = {path: value for path, value in found.items() if path in names or defaults[path] != value}
    return [f"--config.{path}={value}" for path, value in found.items()]


def defaults_like(chosen: Any) -> Any:
    """Returns the defaults of a config's task, with the model, the optimizer and so on that it names."""
    names = [f"--config.{path}={name}" for path, name in chosen_names(chosen).items()]
    return override(type(chosen)(), names).config


def chosen_names(chosen: Any) -> dict[str, str]:
    """Returns {path: name} of the names that choose another class for a section than the task's default."""
    defaults = config.section_names(type(chosen)())
    return {
        path: name for path, name in config.section_names(chosen).items() if name != defaults.get(path, name)
    }


def describe_difference(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Returns a line for each field that differs, in the order of the first config.

    A field that a config does not have is shown as "-".
    """
    paths = [path for path in {**first, **second} if first.get(path, ...) != second.get(path, ...)]
    return [f"{path}: {first.get(path, '-')} -> {second.get(path, '-')}" for path in paths]
