"""Trackers of experiments: TensorBoard, Weights & Biases, MLflow, or one of the user's own package.

`training.trackers` names them. Weights & Biases and MLflow are imported only by a run that names them.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from tfm.config import find_by_name, is_dotted
from tfm.errors import UserError, install_extra

PATH = "training.trackers"
PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb", "mlflow": "mlflow"}  # name -> what it imports
METHODS = ("log_config", "log_scalars", "log_samples", "log_picture", "close")  # of `Tracker`


class Tracker(Protocol):
    """What a tracker does with what a run logs.

    It is made by a call with the work directory. The calls then come in order, from one thread. After a
    kill a run repeats steps: what is logged of them comes again, with the same values. An error in any method
    ends the tracker, not the run.
    """

    def log_config(self, config: Mapping[str, Any]) -> None:
        """At each start, before all else: the config of the run, sections as mappings."""
        ...

    def log_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Means since the last line of the log, "train/...", or scores, "validation/..."."""
        ...

    def log_samples(self, step: int, rows: Sequence[Mapping[str, str]]) -> None:
        """A table of outputs, at least one row; all rows have the same columns."""
        ...

    def log_picture(self, step: int, name: str, path: str) -> None:
        """A picture: the PNG file at a path in the work directory, which stays there."""
        ...

    def close(self) -> None:
        """At the end of the run: writes or sends what is left."""
        ...


def check_names(names: Iterable[str]) -> None:
    """Checks the names of trackers without importing anything.

    Raises:
      UserError: one is unknown or there twice.
    """
    names = list(names)
    for name in names:
        if name not in PACKAGES and not is_dotted(name):
            raise UserError(
                f"{PATH} must have names out of {list(PACKAGES)}, or 'package.module:Class' of your own "
                f"package, got {name!r}."
            )
        if names.count(name) > 1:
            raise UserError(f"{PATH} has {name!r} twice: name it once.")


def find_tracker(name: str) -> Callable[[str], Tracker]:
    """What makes the tracker of this name from the path of a work directory.

    Raises:
      UserError: its package is not installed, or a module of the user's own is not allowed or has no such
        class.
    """
    if name not in PACKAGES:
        return find_by_name(PACKAGES, name, PATH, METHODS)
    found = importlib.util.find_spec(PACKAGES[name])
    if found is None or found.origin is None:  # the folder wandb of offline runs is no package
        raise UserError(
            f"{PATH} names {name!r}, whose package {PACKAGES[name]} is not installed: "
            f"{install_extra('tracking')}, or leave the name out."
        )
    return importlib.import_module(f"{__name__}.{name}").make_tracker
