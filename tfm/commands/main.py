"""The console command: tfm COMMAND [arguments].

This module imports nothing slow. The flags of a command are checked before its module is imported, which
imports JAX.
"""

import functools
import gc
import importlib
import sys
from collections.abc import Sequence
from types import ModuleType

import tfm
from tfm.commands import command, console, terminal
from tfm.commands.options import GROUPS, OPTIONS
from tfm.errors import UserError, check_train_extra, suggest

HELP = ("-h", "--help", "help")


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a command.

    Args:
      argv: the command and its arguments. None means the arguments of the process.

    Raises:
      SystemExit: if the command fails, prints its help, or is unknown.
    """
    terminal.exit_on_interrupt()  # the imports take seconds
    name, *arguments = [*(sys.argv[1:] if argv is None else argv)] or HELP[:1]
    console.run(functools.partial(run_command, name, arguments))


def run_command(name: str, arguments: Sequence[str]) -> None:
    """Runs the command `name` or prints its help, or prints the list of all commands or the version.

    Raises:
      SystemExit: with code 0, after the help of a command.
      UserError: if the command or one of its flags does not exist, if a package that it needs is missing, or
        if the command raises it.
    """
    if name == "help" and arguments:  # tfm help train
        name, *arguments = [*arguments, "--help"]
    if name in HELP:
        print(usage())
        return
    if name == "--version":
        print(f"tfm {tfm.__version__}")
        return
    if name not in OPTIONS:
        raise UserError(f"There is no command {name!r}: {suggest(name, OPTIONS)}")
    asks_help = command.is_help_asked(arguments)
    if not asks_help:
        command.parse_flags(OPTIONS[name], arguments)
    check_train_extra(f"tfm {name}")
    module = import_command(name)
    terminal.raise_on_interrupt()
    if not asks_help:
        module.main(arguments)
        return
    from tfm.commands.help_text import make_help  # imported here because it imports JAX

    print(make_help(name, module.__doc__ or "", OPTIONS[name], arguments), flush=True)
    sys.exit(0)


def import_command(name: str) -> ModuleType:
    """Imports the module of a command without collecting garbage.

    An import creates many objects that stay. Python would visit them all again and again, also when JAX
    traces the first program, which takes a tenth of the time to translate a sentence in a new process.
    Therefore all objects that exist after the import are excluded from later collections.
    """
    name = f"tfm.commands.{name}"
    if name in sys.modules:
        return importlib.import_module(name)
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        gc.enable()


def usage() -> str:
    """Returns the list of the commands with their descriptions, grouped by purpose."""
    lines = ["usage: tfm COMMAND [arguments]"]
    for title, group in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {cls.__name__.lower():<12}{cls.__doc__}" for cls in group)]
    lines += ["", "tfm COMMAND --help shows the flags of a command. tfm --version prints the version."]
    return "\n".join(lines)
