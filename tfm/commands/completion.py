r"""Prints a script for bash that completes commands, flags and config fields: tfm completion

  tfm completion > ~/.local/share/bash-completion/completions/tfm

The script contains all words, so a completion does not start Python. Write it again after an upgrade. It
completes the fields of the configs that tfm ships.
"""

import contextlib
import dataclasses
import itertools
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tfm.commands import config, plot
from tfm.commands.command import command, flag_fields
from tfm.commands.config_files import read_config_file, read_variants, shipped_configs
from tfm.commands.options import OPTIONS, Completion, ConfigOptions, FinishedRun
from tfm.config import FieldValue, hints_of, info_of, value_class, walk_fields
from tfm.errors import UserError

BOOLEANS = ("true", "false")


class Option(NamedTuple):
    """A flag, or a field of the config.

    Attributes:
      name: the name without the dashes.
      words: the values to complete. () if the value is a file, a folder, a number or a text.
      closed: whether only `words` are allowed, so that file names are not completed.
      is_switch: whether the option needs no value.
    """

    name: str
    words: tuple[str, ...] = ()
    closed: bool = False
    is_switch: bool = False


class Command(NamedTuple):
    """A command, with its options and the words that may be its first argument."""

    name: str
    options: list[Option]
    words: tuple[str, ...]


@command
def main(options: Completion) -> None:
    """Prints the script."""
    print("\n".join(bash_script(describe_commands())))


def describe_commands() -> list[Command]:
    """Returns all commands of the console with their flags."""
    fields = list(_shipped_fields())
    return [_describe_command(name, cls, fields) for name, cls in OPTIONS.items()]


def _describe_command(name: str, cls: type, fields: Sequence[FieldValue]) -> Command:
    """Returns a command with its flags and with those of `fields` that it accepts."""
    section = "decoding." if issubclass(cls, FinishedRun) else ""
    chosen = fields if issubclass(cls, ConfigOptions) else []
    options = [_from_flag(cls, flag, field) for flag, field in flag_fields(cls).items()]
    options += [_from_field(leaf) for leaf in chosen if leaf.path.startswith(section)]
    words = tuple(_configs_with_variants()) if name == "sweep" else FIRST_WORDS.get(name, ())
    return Command(name, options, words)


def _configs_with_variants() -> Iterator[str]:
    """Yields the names of the configs of tfm that `tfm sweep` can train."""
    for name, path in shipped_configs().items():
        with contextlib.suppress(UserError):
            read_variants(path)
            yield name


def _shipped_fields() -> Iterator[FieldValue]:
    """Returns the fields of the configs that tfm ships, each path once."""
    found: dict[str, FieldValue] = {}
    for path in shipped_configs().values():
        for leaf in walk_fields(read_config_file(path)[0]):
            found.setdefault(leaf.path, leaf)
    return iter(found.values())


def _from_flag(cls: type, name: str, field: dataclasses.Field) -> Option:
    """Returns the `Option` of a flag."""
    kind, choices = value_class(hints_of(cls)[field.name]), info_of(field).choices
    return Option(
        name,
        tuple(shipped_configs()) if name == "config" else choices,
        closed=bool(choices),
        is_switch=kind is bool,
    )


def _from_field(leaf: FieldValue) -> Option:
    """Returns the `Option` of a config field."""
    choices = BOOLEANS if isinstance(leaf.value, bool) else tuple(map(str, leaf.info.choices))
    return Option(f"config.{leaf.path}", choices, closed=bool(choices))


def bash_script(commands: Sequence[Command]) -> Iterator[str]:
    """Yields the lines of the script, with one list of words for each command.

    Readline ends a word at `=`. So the bash function reads the command line itself and returns only what
    follows the `=`.
    """
    yield "# Completion of tfm for bash, written by: tfm completion"
    yield "_tfm_words() {"
    yield '    case "$1" in'
    for each in commands:
        words = [*each.words, *itertools.chain.from_iterable(map(_bash_words, each.options))]
        yield f"    {each.name}) printf '%s\\n' {' '.join(map(shlex.quote, words))} ;;"
    yield "    esac"
    yield "}"
    yield BASH.replace("COMMANDS", "\n".join(each.name for each in commands))


def _bash_words(option: Option) -> Iterator[str]:
    """Yields an option with each of its values, and `--name=` alone if the value may also be a file."""
    if option.is_switch or not option.closed:
        yield f"--{option.name}" + ("" if option.is_switch else "=")
    yield from (f"--{option.name}={word}" for word in option.words)


BASH = r"""
_tfm() {
    local IFS=$'\n' line=${COMP_LINE:0:$COMP_POINT} word words name files=
    word=${line##*[[:space:]]}
    words=$(_tfm_words "${COMP_WORDS[1]}")
    COMPREPLY=()
    if [[ $COMP_CWORD -eq 1 ]]; then
        COMPREPLY=($(compgen -W "COMMANDS" -- "$word"))
    elif [[ $word == --*=* ]]; then
        name=${word%%=*}=
        word=${word#*=}
        COMPREPLY=($(compgen -W "$words" -X "$name" -- "$name$word"))
        COMPREPLY=("${COMPREPLY[@]#"$name"}")
        [[ $'\n'$words$'\n' == *$'\n'$name$'\n'* ]] && files=yes
    elif [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$word" | sed 's/=.*/=/' | sort -u))
        [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2> /dev/null
    else
        files=yes
        [[ $COMP_CWORD -eq 2 ]] && COMPREPLY=($(compgen -W "$words" -X '-*' -- "$word"))
    fi
    if [[ $files ]]; then
        compopt -o filenames 2> /dev/null
        COMPREPLY+=($(compgen -f -- "$word"))
    fi
}
complete -F _tfm tfm"""


# Words that may be the first argument of a command.
FIRST_WORDS = {"plot": tuple(plot.KINDS), "config": tuple(config.ACTIONS)}
