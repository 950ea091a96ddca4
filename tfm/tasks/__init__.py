"""One file a task: what a batch is, its loss, its evaluation. Each defines `Config` and `create`."""

import importlib
import pkgutil

from tfm.errors import UserError


def find(name):
    """The module of the task `name`.

    Raises:
      UserError: there is no such task.
    """
    known = [module.name for module in pkgutil.iter_modules(__path__)]
    if name not in known:
        raise UserError(f"config.task must be one of {known}, got {name!r}.")
    return importlib.import_module(f"tfm.tasks.{name}")
