r"""Prints a script that completes commands, flags and config fields: tfm completion bash|zsh|fish

  tfm completion bash > ~/.local/share/bash-completion/completions/tfm
  tfm completion zsh > "${fpath[1]}/_tfm"
  tfm completion fish > ~/.config/fish/completions/tfm.fish

The script contains all words, so a completion does not start Python. Write it again after an upgrade. It
completes the fields of the configs that tfm ships.
"""

import contextlib
import dataclasses
import itertools
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tfm.commands import config, plot
from tfm.commands.command import command, describe_flag, flag_fields
from tfm.commands.config_files import read_config_file, read_variants, shipped_configs
from tfm.commands.options import OPTIONS, Completion, ConfigOptions, FinishedRun
from tfm.config import FieldValue, hints_of, info_of, value_class, walk_fields
from tfm.errors import UserError

ANY_NUMBER = "*"  # marks a repeatable option for _arguments of zsh
BOOLEANS = ("true", "false")


class Option(NamedTuple):
    """A flag, or a field of the config.

    Attributes:
      name: the name without the dashes.
      meaning: the help in one line.
      words: the values to complete. () if the value is a file, a folder, a number or a text.
      closed: whether only `words` are allowed, so that file names are not completed.
      is_switch: whether the option needs no value.
      repeats: whether the option may be given several times.
    """

    name: str
    meaning: str
    words: tuple[str, ...] = ()
    closed: bool = False
    is_switch: bool = False
    repeats: bool = False


class Command(NamedTuple):
    """A command, with its options and the words that may be its first argument."""

    name: str
    meaning: str
    options: list[Option]
    words: tuple[str, ...]


@command
def main(options: Completion) -> None:
    """Prints the script."""
    if options.shell not in SHELLS:
        raise UserError(f"Expected one of {', '.join(SHELLS)}, got {options.shell!r}.")
    print("\n".join(SHELLS[options.shell](describe_commands())))


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
    return Command(name, cls.__doc__ or "", options, words)


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
        describe_flag(cls, name, field)[1],
        tuple(shipped_configs()) if name == "config" else choices,
        closed=bool(choices),
        is_switch=kind is bool,
        repeats=kind is tuple,
    )


def _from_field(leaf: FieldValue) -> Option:
    """Returns the `Option` of a config field."""
    choices = BOOLEANS if isinstance(leaf.value, bool) else tuple(map(str, leaf.info.choices))
    return Option(f"config.{leaf.path}", leaf.info.help, choices, closed=bool(choices))


def bash_script(commands: Sequence[Command]) -> Iterator[str]:
    """Yields the lines of the script for bash, with one list of words for each command.

    Readline ends a word at `=`. So the bash function reads the command line itself and returns only what
    follows the `=`.
    """
    yield "# Completion of tfm for bash, written by: tfm completion bash"
    yield "_tfm_words() {"
    yield '    case "$1" in'
    for each in commands:
        words = [*each.words, *itertools.chain.from_iterable(map(_bash_words, each.options))]
        yield f"    {each.name}) printf '%s\\n' {' '.join(map(shlex.quote, words))} ;;"
    yield "    esac"
    yield "}"
    yield BASH.replace("COMMANDS", " ".join(each.name for each in commands))


def _bash_words(option: Option) -> Iterator[str]:
    """Yields an option with each of its values, and `--name=` alone if the value may also be a file."""
    if option.is_switch or not option.closed:
        yield f"--{option.name}" + ("" if option.is_switch else "=")
    yield from (f"--{option.name}={word}" for word in option.words)


BASH = r"""
_tfm() {
    local line=${COMP_LINE:0:COMP_POINT} words name files= IFS=$' \t\n'
    local word=${line##*[[:space:]]}
    COMPREPLY=()
    words=$(_tfm_words "${COMP_WORDS[1]}")
    if [[ $COMP_CWORD -eq 1 ]]; then
        mapfile -t COMPREPLY < <(compgen -W "COMMANDS" -- "$word")
    elif [[ $word == --*=* ]]; then
        name=${word%%=*}=
        word=${word#*=}
        mapfile -t COMPREPLY < <(compgen -W "$words" -X "$name" -- "$name$word")
        COMPREPLY=("${COMPREPLY[@]#"$name"}")
        [[ $'\n'$words$'\n' == *$'\n'$name$'\n'* ]] && files=yes
    elif [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word" | sed 's/=.*/=/' | sort -u)
        [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2> /dev/null
    else
        files=yes
        if [[ $COMP_CWORD -eq 2 ]]; then
            mapfile -t COMPREPLY < <(compgen -W "$words" -X '-*' -- "$word")
        fi
    fi
    if [[ $files ]]; then
        compopt -o filenames 2> /dev/null
        mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$word")
    fi
}
complete -F _tfm tfm"""


def zsh_script(commands: Sequence[Command]) -> Iterator[str]:
    """Yields the lines of the script for zsh, with one list of `_arguments` for each command."""
    yield "#compdef tfm"
    yield "# Completion of tfm for zsh, written by: tfm completion zsh"
    yield "_tfm() {"
    yield "  local -a commands"
    described = " ".join(shlex.quote(f"{each.name}:{each.meaning}") for each in commands)
    yield f"  commands=({described})"
    yield "  if (( CURRENT == 2 )); then _describe -t commands command commands; return; fi"
    yield "  local command=$words[2]"
    yield "  shift words; (( CURRENT-- ))"
    yield "  case $command in"
    for each in commands:
        specs = [*map(_zsh_option, each.options), *_zsh_words(each.words)]
        yield f"  {each.name}) _arguments {' '.join(map(shlex.quote, specs))} ;;"
    yield "  esac"
    yield "}"
    yield 'if [[ $funcstack[1] == _tfm ]]; then _tfm "$@"; else compdef _tfm tfm; fi'


def _zsh_option(option: Option) -> str:
    """Returns the specification of an option for `_arguments`."""
    meaning = option.meaning.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
    again = ANY_NUMBER if option.repeats else ""
    if option.is_switch:
        return f"{again}--{option.name}[{meaning}]"
    return f"{again}--{option.name}=[{meaning}]:value:{_zsh_values(option.words, option.closed)}"


def _zsh_values(words: Iterable[str], closed: bool) -> str:
    """Returns the action of `_arguments` that completes `words`, and files unless `closed`."""
    if not words:
        return "_files"
    listed = " ".join(words)
    return f"({listed})" if closed else f"{{compadd -- {listed}; _files}}"


def _zsh_words(words: Sequence[str]) -> list[str]:
    """Returns specifications that complete `words` as the first argument and files as the others."""
    first = [f"1:word:{_zsh_values(words, closed=False)}"] if words else []
    return [*first, "*:file:_files"]


def fish_script(commands: Sequence[Command]) -> Iterator[str]:
    """Yields the lines of the script for fish, with one `complete` for each option."""
    yield "# Completion of tfm for fish, written by: tfm completion fish"
    for each in commands:
        yield (f"complete -c tfm -f -n __fish_use_subcommand -a {each.name} -d {_fish_quote(each.meaning)}")
    for each in commands:
        condition = f"-n '__fish_seen_subcommand_from {each.name}'"
        if each.words:
            yield f"complete -c tfm {condition} -a {_fish_quote(' '.join(each.words))}"
        for option in each.options:
            value = "" if option.is_switch else " -x" if option.closed else " -r"
            words = f" -a {_fish_quote(' '.join(option.words))}" if option.words else ""
            meaning = _fish_quote(option.meaning)
            yield f"complete -c tfm {condition} -l {option.name}{value}{words} -d {meaning}"


def _fish_quote(text: str) -> str:
    """Returns the text in single quotes, escaped for fish."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SHELLS = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}
# Words that may be the first argument of a command.
FIRST_WORDS = {"plot": tuple(plot.KINDS), "config": tuple(config.ACTIONS), "completion": tuple(SHELLS)}
