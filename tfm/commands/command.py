"""Commands as functions of a dataclass of options.

    @options
    class Compare(ImportOptions):
        first: str = positional("DIR_A")
        split: str = option("test", "Split that was evaluated.")

    @command
    def main(options: Compare) -> None:
        ...

Each field is a flag or a positional argument. Its type and its rules (see `tfm.config.FieldInfo`) give the
check, the --help and the tables of the docs. A class with a method `open_config` has a
config, whose fields --config.field=value changes. `FIRST_ARGUMENT` of a class is the name of a flag whose
value may be the first argument without the flag.

This module imports nothing slow, so that a wrong flag is reported at once.
"""

import contextlib
import dataclasses
import functools
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, dataclass_transform, runtime_checkable

from absl import flags

from tfm.config import FieldInfo, allow_modules, find_problem, hints_of, info_of, value_class
from tfm.errors import UserError, suggest
from tfm.io.remote import is_url

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FLAG, POSITIONAL, SHORT_FOR, ALLOW_EMPTY = "flag", "positional", "short for", "allow empty"
OPENS = "opens"  # key of the function of `tfm.workdir.working_copies` that opens a value that is a URL
REQUIRED = dataclasses.MISSING
HELP_FLAGS = ("--help", "-help", "--helpshort", "-h", "-?")
OVERRIDES = ("--config.", "-config.", "--noconfig.", "-noconfig.")
EXPANDED_PATH = re.compile(r"(?!~(/|$)).*", re.DOTALL)
MAX_SHOWN_CHARACTERS = 60  # of a value in an error message
DEFINE: dict[type, Callable[..., Any]] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
    tuple: flags.DEFINE_multi_string,
}
T = TypeVar("T")
OptionsClass = type["DataclassInstance"]


@runtime_checkable
class OpensConfig(Protocol):
    """A class of options that have a config, see `tfm.commands.options.ConfigOptions`."""

    @classmethod
    def open_config(
        cls, values: dict[str, Any], arguments: Sequence[str]
    ) -> tuple[dict[str, Any], list[str]]:
        """Reads the config, and sets the fields that the arguments set."""


def option(
    default: Any,
    help: str,
    *,
    flag: str = "",
    short_for: str = "",
    allow_empty: bool = False,
    opens: str = "",
    **rules: Any,
) -> Any:
    """Creates a field that is a flag.

    Args:
      default: the default value, or `REQUIRED`.
      help: the meaning of the flag.
      flag: the name of the flag. "" is the name of the field.
      short_for: path of a config field that the flag sets, such as "decoding.beam_size".
      allow_empty: whether the value may be an empty text.
      opens: the name of the function of `tfm.workdir.working_copies` that opens a value that is a URL. The
        command receives a local path. "" passes the value as it is.
      rules: attributes of `tfm.config.FieldInfo`, such as `minimum`.
    """
    info = FieldInfo(help, **rules)
    metadata = {"info": info, FLAG: flag, SHORT_FOR: short_for, ALLOW_EMPTY: allow_empty, OPENS: opens}
    return dataclasses.field(default=default, metadata=metadata)


def output_option(default: Any, help: str, *, opens: str = "open_to_read") -> Any:
    """Creates a field that is a flag for a file or a folder that the command creates, a path or a URL.

    The value must not begin with ~, which the shell does not expand after a "=" and which would create a
    folder "~". For `opens`, see `option`.
    """
    return option(default, help, opens=opens, pattern=EXPANDED_PATH, form="a path or a URL, and no ~")


def short_for(path: str) -> Any:
    """Creates a field that is a flag for the config field at a path."""
    return option(None, f"Short for --config.{path}.", short_for=path)


def positional(name: str, opens: str = "") -> Any:
    """Creates a field that is a positional argument. A field of tuples takes all arguments that are left.

    For `opens`, see `option`.
    """
    return dataclasses.field(metadata={"info": FieldInfo(), POSITIONAL: name, OPENS: opens})


@dataclass_transform(
    kw_only_default=True, frozen_default=True, field_specifiers=(option, output_option, positional)
)
def options(cls: type[T]) -> type[T]:
    """Makes a frozen dataclass of the options of a command."""
    return dataclasses.dataclass(frozen=True, kw_only=True)(cls)


def command(function: Callable[[Any], None]) -> Callable[[Sequence[str] | None], None]:
    """Makes a `main(argv=None)` of a function whose parameter `options` has the class of the options.

    The attribute `options` of `main` is their class, and the attribute `run` is the function. `main` raises a
    UserError for a mistake. `tfm.commands.main` prints the help.
    """
    cls = typing.get_type_hints(function)["options"]

    @functools.wraps(function)
    def main(argv: Sequence[str] | None = None) -> None:
        with contextlib.ExitStack() as stack:
            function(parse(cls, sys.argv[1:] if argv is None else argv, stack))

    main.options = cls  # type: ignore[attr-defined]
    main.run = function  # type: ignore[attr-defined]
    return main


def is_help_asked(argv: Sequence[str]) -> bool:
    """Returns whether the arguments ask for help."""
    return any(argument.partition("=")[0] in HELP_FLAGS for argument in before_dashes(argv))


def parse(cls: OptionsClass, argv: Sequence[str], stack: contextlib.ExitStack | None = None) -> Any:
    """Parses arguments into the options `cls`, with the config if they have one.

    Args:
      cls: the class of the options.
      argv: the arguments.
      stack: closes the local copies of values that are URLs. None opens no copies.

    Raises:
      UserError: if a flag is unknown, a value is invalid, an argument is missing or superfluous, the config
        or a URL cannot be opened, or a flag and the config field that it is short for have different values.
    """
    values, rest = parse_flags(cls, argv)
    values = _open_urls(cls, values, stack)
    if "imports" in values:
        allow_modules(values["imports"])
    if issubclass(cls, OpensConfig):
        paths = {name: field.metadata[SHORT_FOR] for name, field in _fields(cls, FLAG).items()}
        short = {name: path for name, path in paths.items() if path and values[name] is not None}
        arguments = [f"--config.{path}={values[name]}" for name, path in short.items()]
        config_values, rest = cls.open_config(values, [*arguments, *rest])
        _check_short_flags(short, values, config_values["overrides"])
        values |= config_values
    return cls(**values, **_open_urls(cls, _read_positionals(cls, rest), stack))


def _open_urls(
    cls: OptionsClass, values: dict[str, Any], stack: contextlib.ExitStack | None
) -> dict[str, Any]:
    """Returns {field: value}, where the paths of local copies replace URLs, see `option`."""
    if stack is None:
        return values

    def open_url(value: Any, opens: str) -> Any:
        if isinstance(value, tuple):
            return tuple(open_url(each, opens) for each in value)
        if not is_url(value):
            return value
        from tfm.workdir import working_copies  # imported here because it imports JAX

        return stack.enter_context(getattr(working_copies, opens)(value))

    opening = {field.name: field.metadata.get(OPENS) for field in dataclasses.fields(cls)}
    return {
        name: open_url(value, opens) if (opens := opening[name]) else value for name, value in values.items()
    }


def _check_short_flags(
    short: Mapping[str, str], values: Mapping[str, Any], fields: Mapping[str, Any]
) -> None:
    """Raises a UserError if a field has a value by its short flag and another value by its long flag.

    Args:
      short: {name of a short flag that is given: path of its field}.
      values: {name of a flag: value}.
      fields: {path: value} of the fields that the arguments set. A long flag comes after its short flag.
    """
    for name, path in short.items():
        if fields[path] != values[name]:
            raise UserError(
                f"--{name} is short for --config.{path}, but both have values: {values[name]} and "
                f"{fields[path]}. Leave one out."
            )


def parse_flags(cls: OptionsClass, argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Parses and checks all arguments except the fields of the config, without reading a config.

    Returns:
      {field: value} of all flags, and the remaining arguments: fields of the config and positional arguments.
      If there are fields of the config, the positional arguments are not checked.

    Raises:
      UserError: as `parse`, except for the fields of the config.
    """
    values, rest = read_flags(cls, argv)
    _check_known(cls, rest)
    missing = [f"--{name}" for name, field in flag_fields(cls).items() if values[field.name] is REQUIRED]
    if missing:
        raise UserError(f"{' and '.join(missing)} must be given. tfm COMMAND --help describes all flags.")
    if not any(argument.startswith(OVERRIDES) for argument in rest):
        _read_positionals(cls, rest)
    return values, rest


def read_flags(cls: OptionsClass, argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Returns {field: value} of all flags, and the other arguments, unknown flags among them.

    A flag that is not given has its default, or `REQUIRED` if it has no default.

    Raises:
      UserError: if a value is invalid, or is empty and the flag does not allow that.
    """
    first_flag = getattr(cls, "FIRST_ARGUMENT", "")
    if first_flag and argv and not argv[0].startswith("-"):
        argv = [f"--{first_flag}={argv[0]}", *argv[1:]]
    parsed, fields, hints = flags.FlagValues(), flag_fields(cls), hints_of(cls)
    for name, field in fields.items():
        DEFINE[value_class(hints[field.name])](name, None, "", flag_values=parsed)
    with explain_flag_errors(parsed):
        _, *rest = parsed(["", *argv], known_only=True)
    values = {}
    for name, field in fields.items():
        value = parsed[name].value
        value = tuple(value) if isinstance(value, list) else value
        if not field.metadata[ALLOW_EMPTY] and (value == "" or (isinstance(value, tuple) and "" in value)):
            raise UserError(f"--{name} is empty. Give it a value, or leave it out.")
        if value is not None and (
            problem := find_problem(value, hints[field.name], info_of(field), f"--{name}")
        ):
            raise UserError(problem)
        values[field.name] = field.default if value is None else value
    return values, rest


@contextlib.contextmanager
def explain_flag_errors(values: flags.FlagValues) -> Iterator[None]:
    """Converts the errors of absl and ml_collections into a UserError with one line.

    The text of absl for an illegal value is "flag --name=value: reason", where the reason comes from Python.

    Args:
      values: the flags that are parsed inside.
    """
    try:
        yield
    except UserError:
        raise
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError) as error:
        text, reason = str(error), str(error.__context__)
        name, _, value = text.removeprefix("flag --").removesuffix(f": {reason}").partition("=")
        if isinstance(error, flags.IllegalFlagValueError) and name in values:
            parser = values[name].parser
            is_switch = isinstance(parser, flags.BooleanParser)
            if expected := "true or false" if is_switch else parser.syntactic_help:
                text = f"--{name}: expected {expected}, got {shorten(value)}."
        raise UserError(" ".join(text.split())) from None


def flag_fields(cls: OptionsClass) -> dict[str, dataclasses.Field]:
    """Returns {name of the flag: field} of the flags of an options class, the required flags first."""
    fields = sorted(_fields(cls, FLAG).values(), key=lambda field: field.default is not REQUIRED)
    return {field.metadata[FLAG] or field.name: field for field in fields}


def positional_names(cls: OptionsClass) -> list[str]:
    """Returns the names of the positional arguments, such as ["DIR_A", "[FOLDER ...]"]."""
    return [field.metadata[POSITIONAL] for field in _fields(cls, POSITIONAL).values()]


def describe_flag(cls: OptionsClass, name: str, field: dataclasses.Field) -> tuple[str, str]:
    """Returns the flag with its default or a placeholder, such as "--samples=3", and its meaning in one line.

    A flag that is true or false has only its name, such as "--dry_run".
    """
    kind, left = value_class(hints_of(cls)[field.name]), f"--{name}"
    if kind is not bool:
        has_default = field.default not in (REQUIRED, None, "", ())
        left += f"={field.default if has_default else placeholder(name)}"
    words = [info_of(field).description]
    words += ["Required."] * (field.default is REQUIRED)
    words += ["May be repeated."] * (kind is tuple)
    return left, " ".join(words)


def placeholder(flag: str) -> str:
    """Returns the word for the value of a flag in the help."""
    return "FILE" if flag == "config" else flag.upper()


def shorten(value: object) -> str:
    """Returns a value for an error message, a text in quotes. The middle of a long value is left out."""
    text, half = repr(value), MAX_SHOWN_CHARACTERS // 2
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:half]}...{text[-half:]}"


def before_dashes(argv: Sequence[str]) -> Sequence[str]:
    """Returns the arguments before "--". The arguments after it are never flags."""
    return argv[: argv.index("--")] if "--" in argv else argv


def _fields(cls: OptionsClass, key: str) -> dict[str, dataclasses.Field]:
    """Returns {name: field} of the fields whose metadata have a key, `FLAG` or `POSITIONAL`."""
    return {field.name: field for field in dataclasses.fields(cls) if key in field.metadata}


def _check_known(cls: OptionsClass, arguments: Sequence[str]) -> None:
    """Raises a UserError if an argument is a flag that the command does not have."""
    has_config = issubclass(cls, OpensConfig)
    for argument in before_dashes(arguments):
        is_number = argument[1:2].isdecimal() or argument[1:2] == "."  # the value of a field of the config
        is_override = has_config and argument.startswith(OVERRIDES)
        if not argument.startswith("-") or argument == "-" or is_number or is_override:
            continue
        name = argument.lstrip("-").partition("=")[0]
        if name == "config" and has_config:
            raise UserError(
                "--config=FILE is for tfm train. This command reads the config of --workdir; "
                "change its fields with --config.field=value."
            )
        raise UserError(f"There is no flag --{name}: {suggest(name, flag_fields(cls))}")


def _read_positionals(cls: OptionsClass, arguments: Sequence[str]) -> dict[str, Any]:
    """Returns {field: value} of the positional arguments, or raises a UserError if their number is wrong."""
    arguments = [argument for argument in arguments if argument != "--"]
    names = list(_fields(cls, POSITIONAL))
    any_number = bool(names) and value_class(hints_of(cls)[names[-1]]) is tuple
    single = len(names) - any_number
    if len(arguments) < single or (len(arguments) > single and not any_number):
        expected, got = (" ".join(some) or "nothing" for some in (positional_names(cls), arguments))
        raise UserError(f"Expected {expected} in addition to the flags, got {got}.")
    values = [*arguments[:single], *[tuple(arguments[single:])] * any_number]
    return dict(zip(names, values, strict=True))
