"""Commands as functions of a dataclass of options.

    @options
    class Compare(ImportOptions):
        first: str = positional("DIR_A")
        split: str = option("test", "Split that was evaluated.")

    @command
    def main(options: Compare) -> None:
        ...

Each field is a flag or a positional argument. Its type and its rules (see `tfm.config.FieldInfo`) give the
check, the --help and the shell completion. A class with a method `open_config` has a config, whose fields
--config.field=value changes. `FIRST_ARGUMENT` of a class is the name of a flag whose value may be the first
argument without the flag.

This module imports nothing slow, so that a wrong flag is reported at once.
"""

import dataclasses
import functools
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, dataclass_transform

from absl import flags

from tfm.arguments import suggest
from tfm.config import FieldInfo, allow_modules, find_problem, hints_of, info_of, value_class
from tfm.errors import UserError

FLAG, POSITIONAL, SHORT_FOR, ALLOW_EMPTY = "flag", "positional", "short for", "allow empty"
REQUIRED = dataclasses.MISSING
HELP_FLAGS = ("--help", "-help", "--helpshort", "-h", "-?")
OVERRIDES = ("--config.", "-config.", "--noconfig.", "-noconfig.")
KINDS = {int: "an integer", float: "a number"}
MAX_SHOWN_CHARACTERS = 60  # of a value in an error message
T = TypeVar("T")


def option(
    default: Any, help: str, *, flag: str = "", short_for: str = "", allow_empty: bool = False, **rules: Any
) -> Any:
    """Creates a field that is a flag.

    Args:
      default: the default value, or `REQUIRED`.
      help: the meaning of the flag.
      flag: the name of the flag. "" is the name of the field.
      short_for: path of a config field that the flag sets, such as "decoding.beam_size".
      allow_empty: whether the value may be an empty text.
      rules: attributes of `tfm.config.FieldInfo`, such as `minimum`.
    """
    info = FieldInfo(help, **rules)
    metadata = {"info": info, FLAG: flag, SHORT_FOR: short_for, ALLOW_EMPTY: allow_empty}
    return dataclasses.field(default=default, metadata=metadata)


def positional(name: str) -> Any:
    """Creates a field that is a positional argument. A field of tuples takes all arguments that are left."""
    return dataclasses.field(metadata={"info": FieldInfo(), POSITIONAL: name})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option, positional))
def options(cls: type[T]) -> type[T]:
    """Makes a frozen dataclass of the options of a command."""
    return dataclasses.dataclass(frozen=True, kw_only=True)(cls)


def command(function: Callable[[Any], None]) -> Callable[[Sequence[str] | None], None]:
    """Makes a `main(argv=None)` of a function of options.

    The attribute `options` of `main` is their class, and the attribute `run` is the function. `main` raises a
    UserError for a mistake, and SystemExit after it has printed the help.
    """
    cls = typing.get_type_hints(function)["options"]

    @functools.wraps(function)
    def main(argv: Sequence[str] | None = None) -> None:
        arguments = read_flag_files(sys.argv[1:] if argv is None else argv)
        if is_help_asked(arguments):
            from tfm.commands import help_text  # imported here because it imports JAX

            print(help_text.make_help(function.__module__, cls, arguments), flush=True)
            sys.exit(0)
        function(parse(cls, arguments))

    main.options = cls  # type: ignore[attr-defined]
    main.run = function  # type: ignore[attr-defined]
    return main


def is_help_asked(argv: Sequence[str]) -> bool:
    """Returns whether the arguments ask for help."""
    return any(argument.partition("=")[0] in HELP_FLAGS for argument in _before_dashes(argv))


def read_flag_files(argv: Sequence[str]) -> list[str]:
    """Replaces each --flagfile=FILE by the arguments in the file.

    Raises:
      UserError: if a file cannot be read.
    """
    try:
        return flags.FlagValues().read_flags_from_files(list(argv))
    except flags.Error as error:
        raise UserError(_one_line(error)) from None


def parse(cls: type, argv: Sequence[str]) -> Any:
    """Parses arguments into the options `cls`, with the config if they have one.

    Raises:
      UserError: if a flag is unknown, a value is invalid, or an argument is missing or superfluous.
    """
    values, rest = parse_flags(cls, argv)
    if "imports" in values:
        allow_modules(values["imports"])
    if hasattr(cls, "open_config"):
        config_values, rest = cls.open_config(values, [*_short_overrides(cls, values), *rest])
        values |= config_values
    return cls(**values, **_read_positionals(cls, [argument for argument in rest if argument != "--"]))


def parse_flags(cls: type, argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Parses and checks all arguments except the fields of the config, without reading a config.

    Returns:
      {field: value} of all flags, and the remaining arguments: fields of the config and positional arguments.

    Raises:
      UserError: as `parse`, except for the fields of the config.
    """
    values, rest = read_flags(cls, argv)
    missing = [f"--{name}" for name, field in flag_fields(cls).items() if values[field.name] is REQUIRED]
    _check_known(cls, rest)
    if missing:
        raise UserError(f"{' and '.join(missing)} must be given. tfm COMMAND --help describes all flags.")
    if not any(argument.startswith(OVERRIDES) for argument in rest):
        _read_positionals(cls, [argument for argument in rest if argument != "--"])
    return values, rest


def read_flags(cls: type, argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Returns {field: value} of all flags, and the other arguments. A missing flag has the value `REQUIRED`.

    Raises:
      UserError: if a value is invalid.
    """
    first_flag = getattr(cls, "FIRST_ARGUMENT", "")
    if first_flag and argv and not argv[0].startswith("-"):
        argv = [f"--{first_flag}={argv[0]}", *argv[1:]]
    flag_values, fields = flags.FlagValues(), flag_fields(cls)
    for name, field in fields.items():
        if value_class(hints_of(cls)[field.name]) is bool:
            flags.DEFINE_bool(name, None, "", flag_values)
        else:
            flags.DEFINE_multi_string(name, None, "", flag_values)
    try:
        _, *rest = flag_values(["", *argv], known_only=True)
    except flags.IllegalFlagValueError as error:  # of a boolean
        name, _, text = str(error).removeprefix("flag --").partition(":")[0].partition("=")
        raise UserError(f"--{name}: expected true or false, got {shorten(text)}.") from None
    except flags.Error as error:
        raise UserError(_one_line(error)) from None
    texts = {field.name: flag_values[name].value for name, field in fields.items()}
    return {field.name: _convert(cls, name, field, texts[field.name]) for name, field in fields.items()}, rest


def flag_fields(cls: Any) -> dict[str, dataclasses.Field]:
    """Returns {name of the flag: field} of the flags of an options class, the required flags first."""
    fields = [field for field in dataclasses.fields(cls) if FLAG in field.metadata]
    fields.sort(key=lambda field: field.default is not REQUIRED)
    return {field.metadata[FLAG] or field.name: field for field in fields}


def positional_names(cls: Any) -> list[str]:
    """Returns the names of the positional arguments, such as ["DIR_A", "[FOLDER ...]"]."""
    return [field.metadata[POSITIONAL] for field in dataclasses.fields(cls) if POSITIONAL in field.metadata]


def describe_flag(cls: type, name: str, field: dataclasses.Field) -> tuple[str, str]:
    """Returns the flag with its default or a placeholder, and its meaning in one line."""
    hint = hints_of(cls)[field.name]
    left = f"--{name}"
    if value_class(hint) is not bool:
        has_default = field.default not in (REQUIRED, None, "", ())
        left += f"={field.default if has_default else placeholder(name)}"
    words = [info_of(field).description]
    words += ["Required."] * (field.default is REQUIRED)
    words += ["May be repeated."] * (value_class(hint) is tuple)
    return left, " ".join(words)


def placeholder(flag: str) -> str:
    """Returns the word for the value of a flag in the help."""
    return "FILE" if flag == "config" else flag.upper()


def shorten(value: object) -> str:
    """Returns a value for an error message, a text in quotes. The middle of a long value is left out."""
    text, half = repr(value), MAX_SHOWN_CHARACTERS // 2
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:half]}...{text[-half:]}"


def _convert(cls: Any, name: str, field: dataclasses.Field, given: Any) -> Any:
    """Returns the value of a flag from its texts, or raises a UserError if it is invalid."""
    if given is None:
        return field.default
    hint = hints_of(cls)[field.name]
    kind = value_class(hint)
    if kind is bool:
        return given
    if "" in given and not field.metadata[ALLOW_EMPTY]:
        raise UserError(f"--{name} is empty. Give it a value, or leave it out.")
    value = tuple(given) if kind is tuple else given[-1]
    if kind in KINDS:
        try:
            value = kind(given[-1])
        except ValueError:
            raise UserError(f"--{name}: expected {KINDS[kind]}, got {shorten(given[-1])}.") from None
    if problem := find_problem(value, hint, info_of(field), f"--{name}"):
        raise UserError(problem)
    return value


def _short_overrides(cls: Any, values: Mapping[str, Any]) -> list[str]:
    """Returns --config.field=value for each given flag that is short for a field of the config."""
    fields = [field for field in dataclasses.fields(cls) if field.metadata.get(SHORT_FOR)]
    given = [field for field in fields if values[field.name] is not None]
    return [f"--config.{field.metadata[SHORT_FOR]}={values[field.name]}" for field in given]


def _check_known(cls: Any, arguments: Sequence[str]) -> None:
    """Raises a UserError if an argument is a flag that the command does not have."""
    has_config = hasattr(cls, "open_config")
    for argument in _before_dashes(arguments):
        if not argument.startswith("-") or argument == "-" or _is_number(argument):
            continue
        if has_config and argument.startswith(OVERRIDES):
            continue
        name = argument.lstrip("-").partition("=")[0]
        if name == "config" and has_config:
            raise UserError(
                "--config=FILE is for tfm train. This command reads the config of --workdir; "
                "change its fields with --config.field=value."
            )
        raise UserError(f"There is no flag --{name}: {suggest(name, flag_fields(cls))}")


def _is_number(text: str) -> bool:
    """Returns whether an argument is a negative number, the value of a field of the config."""
    return text[1:2].isdecimal() or text[1:2] == "."


def _before_dashes(argv: Sequence[str]) -> Sequence[str]:
    """Returns the arguments before "--". The arguments after it are never flags."""
    return argv[: argv.index("--")] if "--" in argv else argv


def _read_positionals(cls: Any, arguments: list[str]) -> dict[str, Any]:
    """Returns {field: value} of the positional arguments, or raises a UserError if their number is wrong."""
    fields = [field for field in dataclasses.fields(cls) if POSITIONAL in field.metadata]
    any_number = bool(fields) and value_class(hints_of(cls)[fields[-1].name]) is tuple
    single = len(fields) - any_number
    if len(arguments) < single or (len(arguments) > single and not any_number):
        expected, got = (" ".join(some) or "nothing" for some in (positional_names(cls), arguments))
        raise UserError(f"Expected {expected} in addition to the flags, got {got}.")
    values = [*arguments[:single], *[tuple(arguments[single:])] * any_number]
    return {field.name: value for field, value in zip(fields, values, strict=True)}


def _one_line(error: BaseException) -> str:
    """Returns the text of an error in one line."""
    return " ".join(str(error).split())
