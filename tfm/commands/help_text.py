"""The --help of the commands: usage, flags, and the fields of the config with default, range and meaning."""

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from tfm.commands.command import (
    REQUIRED,
    describe_flag,
    flag_fields,
    placeholder,
    positional_names,
    read_flags,
)
from tfm.commands.options import ConfigOptions, FinishedRun
from tfm.commands.overrides import override
from tfm.config import FieldValue, OnResume, walk_fields
from tfm.errors import UserError
from tfm.tasks.translation.task import Config

MARKS = {OnResume.FREE: "*", OnResume.FIXED: "-"}
LEFT = 32  # width of the column of names and defaults
WIDTHS = (60, 110)  # the smallest and the largest line width, in characters
FIELDS_HELP = (
    "Fields of the config, such as --config.training.steps=1000, with the values of --config=FILE or their "
    "defaults. When a run resumes, fields marked * may change, and fields marked - may never change. All "
    "others may change with --allow_change=FIELD."
)
DECODING_HELP = (
    "Fields of the run's config, such as --config.decoding.beam_size=5. `tfm train --help` shows the fields "
    "of the other sections."
)


def make_help(name: str, about: str, cls: type, argv: Sequence[str]) -> str:
    """Returns the help of a command.

    A command that begins a run shows all fields of the config, with the values of --config=FILE if it is
    given. A command that opens a run shows only the fields of the decoding section.

    Args:
      name, about: name of the command, and the text below its usage.
      cls: the options of the command.
      argv: arguments of the command.

    Raises:
      UserError: if a flag has an invalid value, or the config cannot be read. If `argv` sets a config field
        to an invalid value, the help shows the config without the fields that `argv` sets.
    """
    flags = flag_fields(cls)
    usage = ["usage: tfm", name]
    usage += [f"--{flag}={placeholder(flag)}" for flag, field in flags.items() if field.default is REQUIRED]
    usage += positional_names(cls)
    usage += ["[--FLAG=VALUE ...]"] * bool(flags)
    usage += ["[--config.FIELD=VALUE ...]"] * issubclass(cls, ConfigOptions)
    lines = [" ".join(usage), "", about.strip()]
    lines += ["", "Flags:"] if flags else []
    for flag, field in flags.items():
        left, meaning = describe_flag(cls, flag, field)
        lines += _row(f"  {left}", meaning)
    if issubclass(cls, FinishedRun):
        decoding = getattr(_read_config(cls, argv), "decoding", None)
        if decoding is not None:  # a classifier decodes nothing
            lines += ["", *textwrap.wrap(DECODING_HELP, _width()), ""]
            for leaf in walk_fields(decoding, "decoding"):
                lines += _field(leaf)
    elif issubclass(cls, ConfigOptions):
        lines += ["", *all_fields(_read_config(cls, argv))]
    return "\n".join(lines)


def all_fields(config: Any) -> Iterator[str]:
    """Yields the lines about the fields of a config, section by section."""
    yield from textwrap.wrap(FIELDS_HELP, _width())
    yield ""
    section = ""
    fields = sorted(walk_fields(config), key=lambda leaf: "." in leaf.path)  # those without a section first
    for leaf in fields:
        if section != (section := leaf.path.rpartition(".")[0]):
            yield from ("", section)
        yield from _field(leaf, MARKS.get(leaf.info.resume, " "))


def _field(leaf: FieldValue, mark: str = " ") -> list[str]:
    """Returns the lines of a field: its mark, path and value, then its help and allowed values."""
    value = "''" if leaf.value == "" else leaf.value
    return _row(f"{mark} {leaf.path}={value}", leaf.info.description)


def _read_config(cls: type[ConfigOptions], argv: Sequence[str]) -> Any:
    """Returns the config that the arguments name, or the default config of a translation."""
    values, rest = read_flags(cls, argv)
    if (values.get("config_file") or values["workdir"]) in (REQUIRED, None):
        return Config()
    try:
        return cls.open_config(values, rest)[0]["config"]
    except UserError:  # the command itself reports invalid fields
        base, _ = cls.read_base(values)
        return override(base, []).config


def _row(left: str, right: str) -> list[str]:
    """Returns the lines of a row of two columns. If the left text is too long, the right begins below it."""
    indent = " " * (LEFT + 2)
    lines = textwrap.wrap(right, _width(), initial_indent=indent, subsequent_indent=indent)
    if len(left) <= LEFT and lines:
        return [left.ljust(LEFT + 2) + lines[0].lstrip(), *lines[1:]]
    return [left, *lines]


def _width() -> int:
    """Returns the width of the help in characters, from the terminal and within `WIDTHS`."""
    return min(max(shutil.get_terminal_size((100, 24)).columns, WIDTHS[0]), WIDTHS[1])
