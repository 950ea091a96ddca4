"""The flags --config=FILE and --config.field=value, and the error messages of all flags.

The file is read once, before the flags are parsed, because each of its fields is a flag.
"""

import contextlib
import difflib
import functools
import glob
import logging
import os
import re
import reprlib
import runpy
import traceback
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from absl import flags
from ml_collections import config_dict, config_flags

import tfm
from tfm import config
from tfm.errors import UserError
from tfm.sweep.variants import Variant, check_variants
from tfm.workdir import runs

NAME = "config"
IMPORT = "import"
MAX_SHOWN_CHARACTERS = 60  # of a value in an error message
log = logging.getLogger(__name__)
REQUIRED = re.compile(r"flag --\w+=None: (Flag --\w+ must have a value) other than None")


def read_file(path: str) -> config_dict.ConfigDict:
    """Reads a Python file with get_config(), or the config.json of a run, as a locked ConfigDict.

    Args:
      path: the path of the file, or the name of a config that tfm ships, such as "quickstart".

    Raises:
      UserError: if the file does not exist, raises an error, or is not a config.
    """
    path = _find_file(path)
    if path.endswith(".json"):
        return config.to_config_dict(runs.parse_config(config.load(path)))
    made = _run_file(path, "get_config")
    if not isinstance(made, config_dict.ConfigDict):
        raise UserError(f"Expected get_config() in {path} to return a ConfigDict, got {_shown(made)}.")
    config.allow_modules(config.dotted_names(made))  # the user trusts the file
    return made


def read_variants(path: str) -> list[Variant]:
    """Returns the variants that the config file of a sweep yields, in the order of the file.

    Args:
      path: see `read_file`.

    Raises:
      UserError: if the file does not exist, raises an error, or has no get_variants() that yields variants.
    """
    path = _find_file(path)
    made = None if path.endswith(".json") else _run_file(path, "get_variants")
    if not isinstance(made, Iterable):
        raise UserError(f"Expected a function get_variants() in {path}, as in configs/table3.py. Add one.")
    return _check_variants(made, path)


def replace_variant(argv: Sequence[str]) -> list[str]:
    """Replaces --config=FILE:VARIANT by --config=FILE and the fields of the variant.

    Returns the arguments unchanged if they name no variant.

    Raises:
      UserError: if the file has no such variant.
    """
    path, colon, name = (value_of(NAME, argv) or "").rpartition(":")
    if not colon or os.path.exists(f"{path}:{name}"):
        return list(argv)
    variants = {variant.name: variant for variant in read_variants(path)}
    if name not in variants:
        near = difflib.get_close_matches(name, variants, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(variants)}."
        raise UserError(f"{path} has no variant {name!r}: {hint}")
    return [f"--{NAME}={path}", *variants[name].flags, *remove_config_file(argv)]


def _find_file(path):
    """Returns the path of a config file, given its path or the name of a config that tfm ships.

    Raises:
      UserError: if there is no such file.
    """
    shipped = shipped_configs()
    if not os.path.exists(path):
        path = shipped.get(path, path)
    if not os.path.isfile(path):
        inside = os.path.join(path, runs.CONFIG_FILE)
        hint = f"did you mean {inside}?" if os.path.isfile(inside) else "check --config"
        if not hint.endswith("?"):
            hint += f", or give the name of a config that tfm ships: {', '.join(shipped)}."
        if os.path.exists(path) and not os.path.isdir(path):
            hint = "the path is a pipe or a device. Write the config into a file."
        raise UserError(f"Expected a config file at {path}, but there is none: {hint}")
    return path


def _check_variants(made: Iterable, path: str) -> list[Variant]:
    """Calls `check_variants`. Names the line of the file if get_variants() fails while it yields."""
    with _name_failing_line(path):
        return check_variants(made, path)


def shipped_configs() -> dict[str, str]:
    """Returns {name: path} of the configs that tfm ships, in the checkout or in an installed wheel."""
    package = os.path.dirname(tfm.__file__)
    folders = os.path.join(os.path.dirname(package), "configs"), os.path.join(package, "configs")
    paths = [path for folder in folders for path in glob.glob(os.path.join(glob.escape(folder), "*.py"))]
    return {os.path.basename(path).removesuffix(".py"): path for path in sorted(paths)}


def define(saved: config_dict.ConfigDict, values: flags.FlagValues, argv: Sequence[str]) -> None:
    """Defines a flag --config.field in `values` for each field of a ConfigDict.

    If --config.SECTION.name in `argv` chooses another class for a section, such as another model, the section
    first gets the fields and the defaults of that class.

    Args:
      saved: the ConfigDict. It holds the values of the flags.
      values: the flags to extend.
      argv: the arguments of the command.

    Raises:
      UserError: if `argv` sets a field that does not exist, or a value of another type.
    """
    config_class = runs.config_class(saved)
    arguments = remove_config_file(argv)
    allow_names(arguments)
    _change_names(saved, config_class, arguments)
    _check_fields(saved, arguments)
    with _convert_flag_errors(values):
        config_flags.DEFINE_config_dict(
            NAME, saved, "Fields of the config.", values, sys_argv=["tfm", *arguments]
        )
        for name in _optional(saved, config_class, arguments):
            values[name].parser = _NoneParser(values[name].parser)


def define_import(values: flags.FlagValues, argv: Sequence[str]) -> None:
    """Defines --import, and allows configs to import the modules that the arguments name with it.

    Raises:
      UserError: if a value is not the name of a module.
    """
    meaning = (
        "Module of your own that the config may import, such as my_lab.models. The import runs its code."
    )
    flags.DEFINE_multi_string(IMPORT, [], meaning, values)
    config.allow_modules(value for value, _ in _found(IMPORT, argv))


def check_absent(argv: Sequence[str]) -> None:
    """Raises a UserError for --config=FILE, for commands that read the config of a work directory."""
    if value_of(NAME, argv) is not None:
        raise UserError(
            "--config=FILE is for tfm train. This command reads the config of --workdir; "
            "change its fields with --config.field=value."
        )


def parse(argv: Sequence[str], values: flags.FlagValues) -> list[str]:
    """Parses the arguments into `values` and returns the positional arguments.

    Raises:
      UserError: if a flag is unknown or has an invalid or empty value.
    """
    with _convert_flag_errors(values):
        _, *rest = values(["tfm", *argv])
    for name in values:
        flag = values[name]
        given = flag.value if isinstance(flag.value, list) else [flag.value]
        if flag.present and "." not in name and "" in given:
            raise UserError(f"--{name} is empty. Give it a value, or leave it out.")
    return rest


def value_of(name: str, argv: Sequence[str]) -> str | None:
    """Returns the last value of --name in the arguments, or None. Works before the flags are parsed.

    Raises:
      UserError: if a value is empty.
    """
    values = [argument for argument, _ in _found(name, argv)]
    if "" in values:
        raise UserError(f"--{name} is empty. Give it a value.")
    return values[-1] if values else None


def remove_config_file(argv: Sequence[str]) -> list[str]:
    """Returns the arguments without --config=FILE, because only the fields of the file become flags."""
    skipped = {i for _, positions in _found(NAME, argv) for i in positions}
    return [argument for i, argument in enumerate(argv) if i not in skipped]


def allow_names(arguments: Sequence[str]) -> None:
    """Allows the config to import the modules that the arguments name, because the user trusts them."""
    for flag in set(map(_flag_name, arguments)):
        if flag.startswith(f"{NAME}.") and flag.rpartition(".")[2] in config.NAME_FIELDS:
            given = (
                part.strip(" ()[]'\"") for value, _ in _found(flag, arguments) for part in value.split(",")
            )
            config.allow_modules(filter(config.is_dotted, given))  # a single name, or the names of a tuple


def _change_names(saved: config_dict.ConfigDict, config_class: type, arguments: Sequence[str]) -> None:
    """Replaces each section whose `name` the arguments change by the defaults of the new name."""
    given = {name for name in map(_flag_name, arguments) if re.fullmatch(rf"{NAME}\..+\.name", name)}
    for flag in sorted(given, key=lambda name: name.count(".")):  # a section before its nested sections
        path = flag.removeprefix(f"{NAME}.").removesuffix(".name")
        *_, (name, _) = _found(flag, arguments) or [("", ())]
        section = config.defaults_of_name(config_class, saved, path, name) if name else None
        if section is None:
            continue
        *parents, last = path.split(".")
        parent = functools.reduce(getattr, parents, saved)
        log.info(
            "%s.%s.name=%s: the settings of the config for %s are dropped. Fields that no flag sets have "
            "the defaults of %s.",
            NAME,
            path,
            name,
            parent[last].name,
            name,
        )
        with saved.unlocked():
            parent[last] = config.to_config_dict(section)


class _NoneParser(flags.ArgumentParser):
    """A flag parser that accepts None in addition to the values of another parser."""

    def __init__(self, plain):
        self._plain, self.syntactic_help = plain, plain.syntactic_help

    def parse(self, argument):
        return None if argument == "None" else self._plain.parse(argument)

    def flag_type(self):
        return self._plain.flag_type()


def _optional(saved: config_dict.ConfigDict, config_class: type, arguments: Sequence[str]) -> list[str]:
    """Returns the names of the flags among the arguments whose fields may be None."""
    paths = _given_paths(arguments)
    return [f"{NAME}.{path}" for path in paths if config.may_be_none(config_class, saved, path)]


def _given_paths(arguments: Sequence[str]) -> list[str]:
    """Returns the sorted paths of the config fields that the arguments set, each path once."""
    given = {name for name in map(_flag_name, arguments) if name.startswith(f"{NAME}.")}
    return sorted(name.removeprefix(f"{NAME}.") for name in given)


def _flag_name(argument: str) -> str:
    """Returns the name of the flag that an argument sets, or "" if it sets none."""
    return argument.lstrip("-").partition("=")[0] if argument.startswith("-") else ""


def _found(name: str, argv: Sequence[str]) -> list[tuple[str, tuple[int, ...]]]:
    """Returns (value, indices of its arguments) of each --name=value and --name value, in order."""
    found: list[tuple[str, tuple[int, ...]]] = []
    for i, argument in enumerate(argv):
        _, equals, value = argument.partition("=")
        if _flag_name(argument) != name:
            continue
        if equals:
            found.append((value, (i,)))
        elif i + 1 < len(argv):
            found.append((argv[i + 1], (i, i + 1)))
    return found


def _run_file(path: str, function: str) -> Any:
    """Runs a Python file, and returns the result of one of its functions, or None if it is missing."""
    with _name_failing_line(path):
        return runpy.run_path(path).get(function, lambda: None)()


@contextlib.contextmanager
def _name_failing_line(path: str) -> Iterator[None]:
    """Converts the errors of a config file into a UserError that names the line."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}"
        raise UserError(f"The config file fails at {_place(error, path)}: {what}.") from error


def _place(error: BaseException, path: str) -> str:
    """Returns the file and the line at which a config file fails.

    The line is that of a SyntaxError, otherwise the innermost line of the file in the traceback.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f"{path}, line {lines[-1]}" if lines else path


def _check_fields(section: config_dict.ConfigDict, arguments: Iterable[str]) -> None:
    """Raises a UserError if an argument sets a --config.field that `section` does not have."""
    for argument in arguments:
        name = argument.lstrip("-").partition("=")[0].removeprefix("no")  # --noconfig.model.scan
        if name.startswith(f"{NAME}."):
            _check_path(section, name.split("."))


def _check_path(section: Any, path: Sequence[str]) -> None:
    """Raises a UserError if `path`, from "config" to the field, does not lead to a field."""
    for depth, name in enumerate(path[1:], 2):
        known = list(section.keys()) if hasattr(section, "keys") else []
        if name not in known:
            raise UserError(config.unknown_field(".".join(path[:depth]), name, known))
        section = section[name]
    if isinstance(section, config_dict.ConfigDict):  # a value for the section would reset its other fields
        name = ".".join(path)
        field = "name" if "name" in section else next(iter(section))
        example = f"--{name}.{field}=value"
        raise UserError(f"{name} is a section. Set its fields one by one, such as {example}.")


@contextlib.contextmanager
def _convert_flag_errors(values: flags.FlagValues) -> Iterator[None]:
    """Converts the errors of absl and ml_collections for mistakes of the user into a UserError."""
    try:
        yield
    except flags.IllegalFlagValueError as error:
        raise UserError(_expected(error, values) or _one_line(error)) from None
    except (flags.Error, TypeError, ValueError) as error:
        raise UserError(_one_line(error)) from None


def _expected(error: flags.Error, values: flags.FlagValues) -> str | None:
    """Returns the error message for a value that the parser of its flag rejected, or None for other errors.

    The text of absl's error is "flag --name=value: reason", where the reason comes from Python's int() or
    float().
    """
    reason = error.__context__
    if not isinstance(reason, TypeError | ValueError | OverflowError):
        return None
    name, _, value = str(error).removeprefix("flag --").removesuffix(f": {reason}").partition("=")
    kind = _kind(values[name]) if name in values else None
    return kind and f"--{name}: expected {kind}, got {_shown(value)}."


def _kind(flag: flags.Flag) -> str | None:
    """Returns a description of the values of a flag for error messages, or None if its parser has none."""
    if isinstance(flag.parser, flags.EnumParser):
        return f"one of {', '.join(flag.parser.enum_values)}"
    if isinstance(flag.parser, flags.BooleanParser):
        return "true or false"
    return flag.parser.syntactic_help or None


def _one_line(error: BaseException) -> str:
    """Returns the text of an error in one line, without absl's repetition for a missing flag."""
    return REQUIRED.sub(r"\1", str(error)).replace("\n", " ")


def _shown(value: object) -> str:
    """Returns a value for an error message. The middle of a long value is left out."""
    shorten = reprlib.Repr()
    shorten.maxstring = shorten.maxother = MAX_SHOWN_CHARACTERS
    return shorten.repr(value)
