"""The --help of the commands: usage, flags, and the fields of the config with default, range and meaning."""

import contextlib
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags
from ml_collections import config_dict

from tfm.fields import CHANGEABLE, NEVER, Leaf, leaves
from tfm.tasks.translation.task import Config
from tfm.workdir import runs

ASKED = ("--help", "-help", "--helpshort", "-h", "-?")
MARKS = {CHANGEABLE: "*", NEVER: "-"}
CONFIG = "config"
CONFIG_HELP = (
    "Config of the run: a Python file with get_config(), the config.json of another run, or the name of a "
    "config that tfm ships, such as quickstart. FILE:VARIANT or NAME:VARIANT is a variant of a sweep."
)
REPEATED = "; repeat this option to specify a list of values"  # absl adds it to the help of a flag
LEFT = 32  # width of the column of names and defaults
WIDTHS = (60, 110)  # the smallest and the largest line width, in characters


def is_asked(argv: Sequence[str]) -> bool:
    """Returns whether the command line asks for help."""
    options = argv[: argv.index("--")] if "--" in argv else argv
    return any(option.partition("=")[0] in ASKED for option in options)


def text(module: str, argv: Sequence[str], values: flags.FlagValues, positional: Sequence[str] = ()) -> str:
    """Returns the help of a command whose flags are defined.

    A command that begins a run shows all fields of the config, with the values of --config=FILE if it is
    given. A command that opens a run shows only the fields of the decoding section.

    Args:
      module: name of the command's module.
      argv: arguments of the command.
      values: flags of the command.
      positional: names of the positional arguments.
    """
    begins, opens = begins_run(values), opens_run(values)
    own = own_flags(values)
    if begins:
        own = [flag for flag in own if flag.name != CONFIG]
    required = [f"--{flag.name}={flag.name.upper()}" for flag in own if _is_required(flag)]
    required = ["--config=FILE"] * begins + required
    fields = ["[--config.FIELD=VALUE ...]"] * (begins or opens)
    name = module.rpartition(".")[2]
    usage = " ".join(["usage: tfm", name, *required, *positional, "[--FLAG=VALUE ...]", *fields])
    lines = [usage, "", (sys.modules[module].__doc__ or "").strip(), "", "Flags:"]
    lines += _row("  --config=FILE", f"{CONFIG_HELP} Required.") if begins else []
    for flag in sorted(own, key=lambda flag: not _is_required(flag)):
        lines += _row(*_flag_columns(flag))
    if begins:
        lines += ["", *all_fields(_config(argv, values))]
    if opens:
        lines += ["", *_decoding_fields(_config(argv, values))]
    return "\n".join(lines)


def begins_run(values: flags.FlagValues) -> bool:
    """Returns whether a command with these flags begins a run and accepts all fields of its config."""
    return CONFIG in values and not opens_run(values)


def opens_run(values: flags.FlagValues) -> bool:
    """Returns whether a command with these flags opens a run, so that its help shows `decoding`."""
    return "ensemble" in values


def all_fields(config: Any) -> Iterator[str]:
    """Yields the lines about the fields of a config, section by section."""
    yield from textwrap.wrap(
        "Fields of the config, such as --config.training.steps=1000, with the values of --config=FILE or "
        "their defaults. When a run resumes, fields marked * may change, and fields marked - may never "
        "change. All others may change with --allow_change=FIELD.",
        _width(),
    )
    yield ""
    section = ""
    for leaf in sorted(leaves(config), key=lambda leaf: "." in leaf.path):  # fields without a section first
        if section != (section := leaf.path.rpartition(".")[0]):
            yield from ("", section)
        yield from _field(leaf, MARKS.get(leaf.info.resume, " "))


def _decoding_fields(config: Any) -> Iterator[str]:
    """Yields the lines about the fields of the decoding section."""
    yield from textwrap.wrap(
        "Fields of the run's config, such as --config.decoding.beam_size=5. `tfm train --help` shows the "
        "fields of the other sections.",
        _width(),
    )
    yield ""
    for leaf in leaves(config.decoding, "decoding"):
        yield from _field(leaf)


def _field(leaf: Leaf, mark: str = " ") -> Iterator[str]:
    """Returns the lines of a field: its mark, path and value, then its help and allowed values."""
    info = leaf.info
    allowed = " ".join(filter(None, [info.expectation, info.unit]))
    meaning = f"{info.help} ({allowed})" if allowed else info.help
    value = "''" if leaf.value == "" else leaf.value
    return _row(f"{mark} {leaf.path}={value}", meaning)


def _flag_columns(flag: flags.Flag) -> tuple[str, str]:
    """Returns the two columns of an absl flag: its name with the default, and its help."""
    parser, name = flag.parser, f"  --{flag.name}"
    if _is_required(flag) or (flag.default in (None, "", []) and not isinstance(parser, flags.BooleanParser)):
        name += f"={flag.name.upper()}"
    elif not isinstance(parser, flags.BooleanParser):
        name += f"={flag.default}"
    return name, " ".join([meaning(flag), *["Required."] * _is_required(flag)])


def meaning(flag: flags.Flag) -> str:
    """Returns the help of a flag in one line, with absl's note about repetition in fewer words."""
    words = " ".join(flag.help.split())
    own = words.removesuffix(REPEATED)
    return own if own == words or "repeat" in own else f"{own} May be repeated."


def _row(left: str, right: str) -> Iterator[str]:
    """Returns the lines of a row of two columns. If the left text is too long, the right begins below it."""
    indent = " " * (LEFT + 2)
    lines = textwrap.wrap(right, _width(), initial_indent=indent, subsequent_indent=indent)
    if len(left) <= LEFT and lines:
        return iter([left.ljust(LEFT + 2) + lines[0].lstrip(), *lines[1:]])
    return iter([left, *lines])


def own_flags(values: flags.FlagValues) -> list[flags.Flag]:
    """Returns the flags in the order of their definition, without the fields of the config."""
    found = [flag for defined in values.flags_by_module_dict().values() for flag in defined]
    return [flag for flag in found if not flag.name.startswith(f"{CONFIG}.")]


def _is_required(flag: flags.Flag) -> bool:
    """Returns whether a flag is required. absl marks it only by a validator and the default None."""
    return flag.default is None and bool(flag.validators)


def _config(argv: Sequence[str], values: flags.FlagValues) -> Any:
    """Returns the config that the flags name, or the default config of a translation."""
    if CONFIG not in values:
        return Config()
    options = [option for option in argv if option.startswith(f"--{CONFIG}.")]
    with contextlib.suppress(flags.Error, TypeError, ValueError):  # help ignores missing and invalid flags
        values(["tfm", *options])
    found = values[CONFIG].value
    return runs.parse_config(found) if isinstance(found, config_dict.ConfigDict) else Config()


def _width() -> int:
    """Returns the width of the help in characters, from the terminal and within `WIDTHS`."""
    return min(max(shutil.get_terminal_size((100, 24)).columns, WIDTHS[0]), WIDTHS[1])
