"""One file a task: what a batch is, its loss, its evaluation. Each defines `Config` and `create`."""

import sys

from tfm.config import find_module


def find(name):
    """The module of the task `name`.

    Raises:
      UserError: there is no such task.
    """
    return find_module(sys.modules[__name__], name, "config.task")
