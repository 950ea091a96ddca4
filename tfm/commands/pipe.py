"""Standard input as a split of the data."""

import dataclasses
import sys
from typing import Any

import jax

from tfm.data.config import PIPE, SPLITS
from tfm.data.sources.standard_input import store_pipe
from tfm.errors import UserError


def read_pipe(config: Any) -> Any:
    """Returns the config, with each split "-" replaced by a file with the content of standard input.

    Raises:
      UserError: if the run has several processes, because only one has this input, or if `store_pipe` cannot
        use it.
    """
    data = getattr(config, "data", None)
    if PIPE not in [getattr(data, split, None) for split in SPLITS]:
        return config
    if jax.process_count() > 1:
        raise UserError("A run on several hosts cannot read standard input. Store the text in a file.")
    return dataclasses.replace(config, data=store_pipe(data, sys.stdin.buffer))
