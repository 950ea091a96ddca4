"""Trains a model from a config: `python train.py ...` is `tfm train ...`, see `tfm/commands/train.py`."""

import sys

from tfm.commands.main import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]])
