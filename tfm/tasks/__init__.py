"""One file a task: what a batch is, its loss, its evaluation. Each defines `Config` and `create`.

It may define `plan_model(config)` too, the Linen module before there are data, for the plan of a sweep.
"""

import sys
from typing import Any

from tfm.config import find_by_name


def find(name: str) -> Any:
    """What has the `Config` and the `create` of a name.

    Args:
      name: a module of this package, or "package.module:attribute" of the user's own.

    Raises:
      UserError: there is no such task.
    """
    return find_by_name(sys.modules[__name__], name, "config.task", needs=("Config", "create"))
