"""The console command: tfm COMMAND [arguments].

Imports nothing that takes long: the module of a command is imported when it is called.
"""

import importlib
import sys
from collections.abc import Sequence

from tfm.commands import terminal

GROUPS = {
    "Train": {
        "quickstart": "Train on the built-in language, evaluate and draw, in about five minutes.",
        "data": "Show what is in the data of a config: lengths, characters, duplicates, overlap.",
        "train": "Train a model from a config, or resume a run.",
        "sweep": "Train and evaluate all variants of a config, and write their table.",
    },
    "Use a model": {
        "evaluate": "Score a run or an export on a split, and write its outputs.",
        "compare": "Compare two runs on one test set, with significance.",
        "translate": "Translate lines of text.",
        "generate": "Continue texts with a language model.",
        "export": "Write a run as one portable folder.",
    },
    "Look inside": {
        "visualize": "Draw training curves and attention, and make a page to explore translations.",
        "plot": "Draw curves of several runs, positions, masks, schedules, calibration and more.",
        "replay": "Make one step of a run again, and read what happened in it.",
    },
    "Look after runs": {
        "status": "Show what a run has done so far.",
        "list": "List the runs in folders, with their scores.",
        "config": "Show a config, or how two differ.",
    },
    "Set up": {
        "completion": "Print a script with which a shell completes commands, flags and fields.",
    },
}
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}
HELP = ("-h", "--help", "help")
USER_ERROR = 2


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a command.

    Args:
      argv: the command and its arguments; those of the process when None.

    Raises:
      SystemExit: at the end of a command that ends with another exit code than 0, or an unknown one.
    """
    terminal.exit_on_interrupt()  # the imports take seconds
    name, *arguments = [*(sys.argv[1:] if argv is None else argv)] or HELP[:1]
    if name in HELP:
        print(usage())
        return
    if name not in COMMANDS:
        print(f"error: Expected a command ({', '.join(COMMANDS)}), got {name!r}.", file=sys.stderr)
        sys.exit(USER_ERROR)
    from tfm.commands import cli  # not above: it imports JAX

    cli.run(importlib.import_module(f"tfm.commands.{name}").main, arguments)


def usage() -> str:
    """The commands, a line each, by what they are for."""
    lines = ["usage: tfm COMMAND [arguments]"]
    for title, commands in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {name:<12}{text}" for name, text in commands.items())]
    return "\n".join([*lines, "", "tfm COMMAND --help says more."])
