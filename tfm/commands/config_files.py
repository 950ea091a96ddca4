"""Config files: Python files with get_config(), the variants of a sweep, and the config.json of a run."""

import contextlib
import glob
import os
import runpy
import traceback
from collections.abc import Iterable, Iterator
from typing import Any

from ml_collections import config_dict

import tfm
from tfm import config
from tfm.commands.command import shorten
from tfm.errors import UserError, suggest
from tfm.io.remote import is_url
from tfm.sweep.variants import Variant, check_variants
from tfm.workdir import runs


def read_config_file(path: str) -> tuple[Any, list[str]]:
    """Reads a config, and the arguments --config.field=value of its variant.

    Args:
      path: FILE, FILE:VARIANT or FILE:TEXT, where FILE is the path of a Python file with get_config(), the
        path or the URL of the config.json of a run, or the name of a config that tfm ships, such as
        "quickstart". A Python file is executed. If it has no get_variants(), get_config(TEXT) is called.

    Returns:
      The config as the dataclass of its task, and the arguments. The list is empty without a variant.

    Raises:
      UserError: if the file or the variant does not exist, the file raises an error, it is not a config, a
        config.json has a variant, or the URL is not the config.json of a run.
    """
    if is_url(path):
        return _read_config_of_store(path), []
    file, variant = split_variant(path)
    file = find_config_file(file)
    if not file.endswith(".json"):
        return _read_python_config(file, variant)
    if variant:
        raise UserError(f"{file} has no variants. Leave out :{variant}.")
    return runs.parse_config(config.load(file)), []


def _read_python_config(file: str, variant: str) -> tuple[Any, list[str]]:
    """Returns the config of a Python file, and the arguments --config.field=value of its variant.

    Without get_variants(), the file takes the variant as a text for get_config().

    Args:
      file: path of the file.
      variant: name of a variant, or a text for get_config(). It may be "".
    """
    functions = _run_file(file)
    if "get_config" not in functions:
        raise UserError(f"{file} defines no get_config().")
    has_variants = "get_variants" in functions
    arguments = [variant] if variant and not has_variants else []
    made = _call(functions, "get_config", file, *arguments)
    if not isinstance(made, config_dict.ConfigDict):
        raise UserError(f"get_config() in {file} must return to_config_dict(CONFIG), got {shorten(made)}.")
    config.allow_modules(config.dotted_names(made))  # the user trusts the file
    parsed = runs.parse_config(made)
    if not variant or not has_variants:
        return parsed, []
    return parsed, find_variant(_list_variants(functions, file), variant, file).flags


def _read_config_of_store(url: str) -> Any:
    """Returns the config of a run in a store, such as gs://BUCKET/run/config.json.

    Raises:
      UserError: if the URL is another file, because only trusted local files may be executed.
    """
    folder, _, name = url.rpartition("/")
    if name != runs.CONFIG_FILE:
        raise UserError(
            f"Expected a local config file, or the {runs.CONFIG_FILE} of a run, got {url}. Copy the file to "
            "this machine first."
        )
    return runs.open_folder(folder).config


def split_variant(path: str) -> tuple[str, str]:
    """Splits "FILE:VARIANT" into the file and the variant. The variant is "" if there is none.

    Both may contain colons. The file is the longest beginning of the path that exists or is the name of a
    config that tfm ships. If there is no such beginning, the path is split at its last colon.
    """
    parts = path.split(":")
    shipped = shipped_configs()
    for count in range(len(parts), 0, -1):
        file = ":".join(parts[:count])
        if os.path.exists(file) or file in shipped:
            return file, ":".join(parts[count:])
    file, _, variant = path.rpartition(":")  # there is no such file, and an error will name it
    return (file, variant) if file else (path, "")


def read_variants(path: str) -> list[Variant]:
    """Returns the variants that get_variants() of a config file yields, in the order of the file.

    Raises:
      UserError: if the file does not exist, raises an error, or has no get_variants() that yields variants.
    """
    path = find_config_file(path)
    if path.endswith(".json"):
        raise UserError(f"{path} has no variants. Expected a Python file with get_variants().")
    return _list_variants(_run_file(path), path)


def _list_variants(functions: dict[str, Any], path: str) -> list[Variant]:
    """Returns the variants that get_variants() of a config file yields.

    Args:
      functions: {name: value} of the names that the file defines.
      path: path of the file, for messages.
    """
    made = _call(functions, "get_variants", path)
    if not isinstance(made, Iterable):
        raise UserError(f"Expected a function get_variants() in {path}, as in configs/table3.py. Add one.")
    with _name_failing_line(path):
        return check_variants(made, path)


def find_variant(variants: Iterable[Variant], name: str, path: str) -> Variant:
    """Returns the variant of a config file with this name.

    Args:
      variants: the variants of the file.
      name: name of the variant.
      path: path of the file, for the error message.

    Raises:
      UserError: if there is no such variant.
    """
    named = {variant.name: variant for variant in variants}
    if name not in named:
        raise UserError(f"{path} has no variant {name!r}: {suggest(name, named)}")
    return named[name]


def shipped_configs() -> dict[str, str]:
    """Returns {name: path} of the configs that tfm ships, in the checkout or in an installed wheel."""
    folder = os.path.join(os.path.dirname(tfm.__file__), "configs")
    paths = sorted(glob.glob(os.path.join(glob.escape(folder), "*.py")))
    names = {os.path.basename(path).removesuffix(".py"): path for path in paths}
    return {name: path for name, path in names.items() if name != "__init__"}


def find_config_file(path: str) -> str:
    """Returns the path of a config file, given its path or the name of a config that tfm ships.

    A shipped name comes before a file of this name in the current folder. "./NAME" is the file.

    Raises:
      UserError: if there is no such file, or the path is a folder, a pipe or a device.
    """
    shipped = shipped_configs()
    path = shipped.get(path, path)  # a file of this name in the current folder does not run; ./NAME does
    if os.path.isfile(path):
        return path
    inside = os.path.join(path, runs.CONFIG_FILE)
    if os.path.isfile(inside):
        hint = f"did you mean {inside}?"
    elif os.path.exists(path) and not os.path.isdir(path):
        hint = "the path is a pipe or a device. Write the config into a file."
    else:
        hint = f"check --config, or give the name of a config that tfm ships: {suggest(path, shipped)}"
    raise UserError(f"Expected a config file at {path}, but there is none: {hint}")


def _run_file(path: str) -> dict[str, Any]:
    """Runs a Python file, and returns its names. The file may import modules of the current folder."""
    config.allow_current_folder()
    with _name_failing_line(path):
        return runpy.run_path(path)


def _call(functions: dict[str, Any], name: str, path: str, *arguments: str) -> Any:
    """Returns the result of a function of a Python file, or None if the file does not define it."""
    if name not in functions:
        return None
    with _name_failing_line(path):
        return functions[name](*arguments)


@contextlib.contextmanager
def _name_failing_line(path: str) -> Iterator[None]:
    """Converts the errors of a config file into a UserError that names the line."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        description = f"{type(error).__name__}: {error}".rstrip(".")
        raise UserError(
            f"The config file fails at {_find_failing_line(error, path)}: {description}."
        ) from error


def _find_failing_line(error: BaseException, path: str) -> str:
    """Returns the file and the line at which a config file fails.

    A SyntaxError names its line. For other errors, it is the innermost line of the file in the traceback.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f"{path}, line {lines[-1]}" if lines else path
