"""--help of the commands: usage, flags, and the fields of the config with default, range and meaning."""

import contextlib
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags
from ml_collections import config_dict

from tfm.fields import CHANGEABLE, NEVER, WITH_RESET, Leaf, leaves
from tfm.tasks.translation.task import Config
from tfm.workdir import runs

ASKED = ("--help", "-help", "--helpshort", "-h", "-?")
MARKS = {CHANGEABLE: "*", WITH_RESET: "r", NEVER: "-"}
CONFIG = "config"
CONFIG_HELP = (
    "Config of the run: a Python file with get_config(), the config.json of another run, or the name of a "
    "config that tfm ships, such as quickstart; FILE:VARIANT or NAME:VARIANT is one of a sweep."
)
REPEATED = "; repeat this option to specify a list of values"  # what absl adds
LEFT = 32  # columns of names and defaults
WIDTHS = (60, 110)


def is_asked(argv: Sequence[str]) -> bool:
    """Whether the command line asks for help."""
    options = argv[: argv.index("--")] if "--" in argv else argv
    return any(option.partition("=")[0] in ASKED for option in options)


def text(module: str, argv: Sequence[str], values: flags.FlagValues, positional: Sequence[str] = ()) -> str:
    """The help of a command, once its flags are defined.

    A command that opens a run shows the decoding section alone, one that begins a run all fields, with the
    values of --config=FILE where it is given.

    Args:
      module: name of the command's module.
      argv: its arguments.
      values: its flags.
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
    """Whether a command with these flags begins a run, and takes all fields of its config."""
    return CONFIG in values and not opens_run(values)


def opens_run(values: flags.FlagValues) -> bool:
    """Whether a command with these flags opens a run, and takes the fields of `decoding`."""
    return "ensemble" in values


def all_fields(config: Any) -> Iterator[str]:
    """The lines about the fields of a config, by section."""
    yield from textwrap.wrap(
        "Fields of the config, such as --config.training.steps=1000, with the values of --config=FILE, else "
        "their defaults. When a run resumes, those marked * may change, those marked - never, those marked "
        "r with --reset_schedule, all others with --allow_change=FIELD.",
        _width(),
    )
    yield ""
    section = ""
    for leaf in sorted(leaves(config), key=lambda leaf: "." in leaf.path):  # those in no section first
        if section != (section := leaf.path.rpartition(".")[0]):
            yield from ("", section)
        yield from _field(leaf, MARKS.get(leaf.info.resume, " "))


def _decoding_fields(config):
    yield from textwrap.wrap(
        "Fields of the run's config, such as --config.decoding.beam_size=5; `train.py --help` shows those of "
        "the other sections.",
        _width(),
    )
    yield ""
    for leaf in leaves(config.decoding, "decoding"):
        yield from _field(leaf)


def _field(leaf: Leaf, mark: str = " ") -> Iterator[str]:
    info = leaf.info
    allowed = " ".join(filter(None, [info.expectation, info.unit]))
    meaning = f"{info.help} ({allowed})" if allowed else info.help
    value = "''" if leaf.value == "" else leaf.value
    return _row(f"{mark} {leaf.path}={value}", meaning)


def _flag_columns(flag):
    """Name with default, and meaning, of an absl flag."""
    parser, name = flag.parser, f"  --{flag.name}"
    if _is_required(flag) or (flag.default in (None, "", []) and not isinstance(parser, flags.BooleanParser)):
        name += f"={flag.name.upper()}"
    elif not isinstance(parser, flags.BooleanParser):
        name += f"={flag.default}"
    return name, " ".join([meaning(flag), *["Required."] * _is_required(flag)])


def meaning(flag: flags.Flag) -> str:
    """The help of a flag; absl breaks the lines of what it adds."""
    words = " ".join(flag.help.split())
    own = words.removesuffix(REPEATED)
    return own if own == words or "repeat" in own else f"{own} May be repeated."


def _row(left: str, right: str) -> Iterator[str]:
    """Two columns; the right one begins below a left one that is too long."""
    indent = " " * (LEFT + 2)
    lines = textwrap.wrap(right, _width(), initial_indent=indent, subsequent_indent=indent)
    if len(left) <= LEFT and lines:
        return iter([left.ljust(LEFT + 2) + lines[0].lstrip(), *lines[1:]])
    return iter([left, *lines])


def own_flags(values: flags.FlagValues) -> list[flags.Flag]:
    """The flags in their order, without the fields of the config."""
    found = [flag for defined in values.flags_by_module_dict().values() for flag in defined]
    return [flag for flag in found if not flag.name.startswith(f"{CONFIG}.")]


def _is_required(flag):
    """absl keeps no such mark: it adds a validator to a flag whose default is None."""
    return flag.default is None and bool(flag.validators)


def _config(argv, values):
    """The config that the flags name, else the default one of a translation."""
    if CONFIG not in values:
        return Config()
    options = [option for option in argv if option.startswith(f"--{CONFIG}.")]
    with contextlib.suppress(flags.Error, TypeError, ValueError):  # others are required, or do not fit
        values(["tfm", *options])
    found = values[CONFIG].value
    return runs.parse_config(found) if isinstance(found, config_dict.ConfigDict) else Config()


def _width():
    return min(max(shutil.get_terminal_size((100, 24)).columns, WIDTHS[0]), WIDTHS[1])
