"""Evaluates a run: `python eval.py ...` is `tfm evaluate ...`, see `tfm/commands/evaluate.py`."""

import sys

from tfm.commands.main import main

if __name__ == "__main__":
    main(["evaluate", *sys.argv[1:]])
