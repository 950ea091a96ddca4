"""The tasks of the core, and the search for any task by the name that a config gives it.

The module of a task defines its batches, its loss and its evaluation. It must define `Config` and `create`.
It can also define `plan(config)`, which the plan of a sweep calls to get the task before the data are read.
If it defines `fingerprint(config, split)`, changes of the data are noticed, see `fingerprint` below.
For `tfm data`, it can define `inspect_split(config, split)`, which returns a `tfm.data.inspection.Summary`.
A task with labelled texts can define `inspect_labels(config, splits)` instead. It returns {split: Summary}.
"""

from typing import TYPE_CHECKING, Any

from tfm.config import OnResume, field, find_module
from tfm.family import TASKS

if TYPE_CHECKING:
    from tfm.training.task import RunConfig


def find(name: str) -> Any:
    """Returns the module or object that defines `Config` and `create` of a task.

    Args:
      name: a short name in `tfm.family`, or "package.module:attribute" of another package.

    Raises:
      UserError: if the task does not exist.
    """
    return find_module(TASKS, name, "config.task", needs=("Config", "create"))


def fingerprint(config: "RunConfig", split: str) -> str | None:
    """Returns the fingerprint of the content of a split, or None if the task cannot compute it.

    Raises:
      UserError: if the split cannot be used.
    """
    compute = getattr(find(config.task), "fingerprint", None)
    return None if compute is None else compute(config, split)


def task_field(name: str) -> Any:
    """Returns the field `task` for the config of a task.

    Args:
      name: the value of the field, by which `find` finds the module of the task.
    """
    return field(name, "Name of the task.", resume=OnResume.FIXED, warm_start=False)
