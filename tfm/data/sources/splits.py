"""The splits that a data section names, and which of them may be missing.

A test split of the default name may be missing, because the user has not named it. A split that exists must
be usable.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from tfm.data.config import SPLITS, PairsConfig
from tfm.data.data_errors import MissingFile, collect
from tfm.errors import UserError


def find_name(config: Any, split: str) -> str:
    """Returns the name that a data section gives a split.

    Args:
      config: the data section.
      split: "train", "validation" or "test". Any other text is itself the name.

    Raises:
      UserError: if the name is empty.
    """
    name = _name(config, split)
    if not name:
        raise UserError(f"data.{split} is empty. Set it to the name of a split, or choose another split.")
    return name


def list_splits(config: Any, open_split: Callable[[Any, str], Any]) -> list[str]:
    """Returns the splits out of "train", "validation" and "test" that a data section names.

    Leaves out a test split that has the default name and does not exist. The other splits are not opened.

    Args:
      config: the data section.
      open_split: (config, split) opens a split, and raises a `MissingFile` if it does not exist.
    """
    splits = [split for split in SPLITS if getattr(config, split)]
    try:
        if may_be_missing(config, "test"):
            open_split(config, "test")
    except MissingFile:
        splits.remove("test")
    except UserError:
        pass  # the split exists and is damaged, and its check reports why
    return splits


def find_split_problems(
    config: Any, splits: Sequence[str], find_problems: Callable[[Any, str], Sequence[str]]
) -> list[str]:
    """Returns why splits cannot be used, one message for each problem.

    Args:
      config: the data section.
      splits: "train", "validation", "test" or other names.
      find_problems: (config, split) returns problems or raises an error. The error is a `MissingFile` if
        the split does not exist.
    """
    problems: list[str] = []
    required = list_required(config, splits)
    first_splits: dict[str, str] = {}
    for split in splits:
        if (name := _name(config, split)) or split != "test":
            first_splits.setdefault(name, split)
    for name, split in first_splits.items():
        allowed = [] if name in required else [MissingFile]
        with collect(problems), contextlib.suppress(*allowed):
            problems += find_problems(config, split)
    return problems


def list_required(config: Any, splits: Sequence[str]) -> list[str]:
    """Returns the names of the splits that must exist."""
    return [_name(config, split) for split in dict.fromkeys(splits) if not may_be_missing(config, split)]


def may_be_missing(config: Any, split: str) -> bool:
    """Returns whether a split may be missing: a test split of the default name, or of data without names."""
    return split == "test" and getattr(config, "test", PairsConfig.test) == PairsConfig.test


def _name(config: Any, split: str) -> str:
    return getattr(config, split) if split in SPLITS else split
