"""Experiment trackers: TensorBoard, Weights & Biases, MLflow, or a class of another package.

The config field `training.trackers` selects them. Weights & Biases and MLflow are imported only by a run that
selects them.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from tfm.config import find_by_name, is_dotted
from tfm.errors import UserError, install_extra
from tfm.training.hooks import Outcome

PATH = "training.trackers"
PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb", "mlflow": "mlflow"}  # tracker: package
METHODS = ("log_config", "log_scalars", "log_samples", "log_picture", "close")  # of `Tracker`


class Tracker(Protocol):
    """The interface of a tracker.

    A function from the path of the work directory creates the tracker. One thread makes this call and all
    further calls in order. After a kill, a run repeats steps and logs their values again. An error in any
    call ends the tracker, but not the run.
    """

    def log_config(self, step: int, config: Mapping[str, Any]) -> None:
        """Called first at each start of the run with its config, in which sections are mappings.

        `step` is the step that the run resumes from, or 0 for a new run. The run trains later steps again. It
        evaluates this step if its evaluation is missing.
        """
        ...

    def log_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Called with {"train/...": mean since the last call} or with {"validation/...": score}."""
        ...

    def log_samples(self, step: int, rows: Sequence[Mapping[str, str]]) -> None:
        """Called with a table of outputs. It has at least one row, and all rows have the same columns."""
        ...

    def log_picture(self, step: int, name: str, path: str) -> None:
        """Called with the path of a PNG file in the work directory. The file is not deleted."""
        ...

    def close(self, outcome: Outcome) -> None:
        """Called at the end of the run. Writes or sends the remaining data.

        Args:
          outcome: "finished", "stopped" by a signal, or "failed" with an error.
        """
        ...


def check_names(names: Iterable[str]) -> None:
    """Checks the names of trackers without importing anything.

    Raises:
      UserError: if a name is unknown or occurs twice.
    """
    names = list(names)
    for name in names:
        if name not in PACKAGES and not is_dotted(name):
            raise UserError(
                f"Expected {PATH} to be names out of {list(PACKAGES)}, or 'package.module:Class' of another "
                f"package, got {name!r}."
            )
        if names.count(name) > 1:
            raise UserError(f"Expected different names in {PATH}, got {name!r} twice. Remove one of them.")


def find_tracker(name: str) -> Callable[[str], Tracker]:
    """Returns the function or class that creates a tracker from the path of a work directory.

    Args:
      name: a key of `PACKAGES`, or "package.module:Class".

    Raises:
      UserError: if the package is not installed, if a module of another package may not be imported or does
        not contain the class, or if the class lacks a method of `Tracker`.
    """
    if name not in PACKAGES:
        return find_by_name(PACKAGES, name, PATH, METHODS)
    spec = importlib.util.find_spec(PACKAGES[name])
    if spec is None or spec.origin is None:  # the folder "wandb" of offline runs has no origin
        raise UserError(
            f"{PATH} contains {name!r}, but the package {PACKAGES[name]} is not installed: "
            f"{install_extra('tracking')}, or remove the name."
        )
    return importlib.import_module(f"{__name__}.{name}").make_tracker
