"""The console command: tfm COMMAND [arguments].

Imports nothing that takes long: the module of a command is imported when it is called.
"""

import importlib
import sys
from collections.abc import Sequence

from tfm.commands import terminal

COMMANDS = {
    "quickstart": "Train on the built-in language, evaluate and draw: six minutes, no download.",
    "data": "Show what is in the data of a config: lengths, characters, duplicates, overlap.",
    "train": "Train a model from a config, or resume a run.",
    "evaluate": "Score a run or an export on a split, and write its outputs.",
    "translate": "Translate lines of text.",
    "generate": "Continue texts with a language model.",
    "sweep": "Train and evaluate all variants of a config, and write their table.",
    "compare": "Compare two runs on one test set, with significance.",
    "visualize": "Draw training curves and attention, and make a page to explore translations.",
    "plot": "Draw curves of several runs, positions, masks, schedules, calibration and more.",
    "replay": "Make one step of a run again, and read what happened in it.",
    "export": "Write a run as one portable folder.",
    "status": "Show what a run has done so far.",
    "list": "List the runs in folders, with their scores.",
    "config": "Show a config, or how two differ.",
}
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
    """The commands, a line each."""
    lines = [f"  {name:<12}{text}" for name, text in COMMANDS.items()]
    return "\n".join(["usage: tfm COMMAND [arguments]", "", *lines, "", "tfm COMMAND --help says more."])
