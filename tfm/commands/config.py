"""Shows a config, or the difference of two: tfm config show CONFIG, tfm config diff CONFIG CONFIG

A CONFIG is a Python file, FILE:VARIANT of a sweep, the name of a config that tfm ships, a config.json, or the
folder of a run or an export. `show` prints each field as the flag that sets it. `show --changed` prints only
the fields that differ from the defaults of the task. `diff` prints the fields that differ between two
configs, with both values.
"""

import os
from collections.abc import Sequence
from typing import Any

from absl import flags
from ml_collections import config_dict

from tfm import config
from tfm.commands import cli, config_flag
from tfm.errors import UserError
from tfm.fields import leaves
from tfm.workdir import runs

ACTIONS = {"show": 1, "diff": 2}  # number of configs that each action needs
FIRST_WORDS = tuple(ACTIONS)  # a shell completes them as the first argument of the command


def define_flags(values: flags.FlagValues, argv: Sequence[str]) -> None:
    """Defines the flags of the command in `values`."""
    config_flag.define_import(values, argv)
    text = "For show: print only the fields that differ from the defaults."
    flags.DEFINE_bool("changed", False, text, values)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints fields. See `tfm.commands.cli.parse` for `argv` and for the errors."""
    arguments, (action, *paths) = cli.parse(
        __name__, argv, define_flags, ["show|diff", "CONFIG", "[CONFIG ...]"]
    )
    if ACTIONS.get(action) != len(paths):
        raise UserError(f"Expected show CONFIG or diff CONFIG CONFIG, got {' '.join([action, *paths])}.")
    if action == "diff" and arguments.changed:
        raise UserError("--changed is only for show. diff always prints only the fields that differ.")
    configs = [read(path) for path in paths]
    if action == "diff":
        lines = describe_difference(*map(values_of, configs))
    else:
        lines = describe_fields(configs[0], changed=arguments.changed)
    print("\n".join(lines) or "no field differs")


def read(path: str) -> Any:
    """Reads the config at a path, or with a name that tfm ships, as the frozen dataclass of its task."""
    if os.path.isdir(path):
        return runs.read_config(path)
    argv = config_flag.replace_variant([f"--config={path}"])
    return read_fields(config_flag.read_file(config_flag.value_of("config", argv) or path), argv)


def read_fields(mapping: config_dict.ConfigDict, argv: Sequence[str]) -> Any:
    """Returns a config with the fields that the arguments set, as the frozen dataclass of its task."""
    values = flags.FlagValues()
    config_flag.define(mapping, values, argv)
    config_flag.parse(config_flag.remove_config_file(argv), values)
    return runs.parse_config(values.config)


def values_of(chosen: Any) -> dict[str, Any]:
    """Returns {path of a field: value} of all fields of a config."""
    return {leaf.path: leaf.value for leaf in leaves(chosen)}


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
    return read_fields(config.to_config_dict(type(chosen)()), names)


def chosen_names(chosen: Any) -> dict[str, str]:
    """Returns {path: name} of the names that choose another class for a section than the task's default."""
    mapping, found = config.to_config_dict(type(chosen)()), values_of(chosen)
    names = {path: value for path, value in found.items() if path.endswith(".name")}
    return {
        path: name
        for path, name in names.items()
        if config.defaults_of_name(type(chosen), mapping, path.removesuffix(".name"), name) is not None
    }


def describe_difference(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Returns a line for each field that differs, in the order of the first config.

    A field that a config does not have is shown as "-".
    """
    paths = [path for path in {**first, **second} if first.get(path, ...) != second.get(path, ...)]
    return [f"{path}: {first.get(path, '-')} -> {second.get(path, '-')}" for path in paths]
