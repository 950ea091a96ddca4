"""The splits that a data section names, and which of them may be missing.

A test split of the default name may be missing: the default asks for a test split only if it exists. A split
that exists must be usable.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from tfm.config import is_dotted
from tfm.data.config import NOT_READ, PIPE, SPLITS, PairsConfig
from tfm.data.data_errors import MissingFile, collect
from tfm.errors import UserError


def find_name(config: Any, split: str) -> str:
    """Returns the name that a data section gives a split.

    Args:
      config: the data section.
      split: "train", "validation" or "test". Any other text is itself the name.

    Raises:
      UserError: if the name is empty, or is the name of standard input.
    """
    name = getattr(config, split) if split in SPLITS else split
    if not name:
        raise UserError(
            f"There is no split to read because data.{split} is empty. Set it or choose another split."
        )
    if name == PIPE and not is_dotted(config.kind):
        raise UserError(NOT_READ)
    return name


def list_splits(config: Any, open_split: Callable[[Any, str], Any]) -> list[str]:
    """Returns the splits out of "train", "validation" and "test" that a data section names and that exist.

    Args:
      config: the data section.
      open_split: (config, split) opens a split, and raises a `MissingFile` if it does not exist.
    """
    named = [split for split in SPLITS if getattr(config, split)]
    if config.test != PairsConfig.test:
        return named
    try:
        open_split(config, "test")
    except MissingFile:
        named.remove("test")
    except UserError:
        pass  # the split exists and is damaged, and its check reports why
    return named


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
    problems = find_empty_names(config, splits)
    for split, may_be_missing in list_distinct(config, splits).items():
        allowed = [MissingFile] if may_be_missing else []
        with collect(problems), contextlib.suppress(*allowed):
            problems += find_problems(config, split)
    return problems


def find_empty_names(config: Any, splits: Sequence[str]) -> list[str]:
    """Returns a message for each split without a name. Only the test split may have no name."""
    return [
        f"data.{split} is empty. Set it to the name of a split."
        for split in ("train", "validation")
        if split in splits and not getattr(config, split)
    ]


def list_distinct(config: Any, splits: Sequence[str]) -> dict[str, bool]:
    """Returns {split: whether it may be missing} of splits with different names that are not empty."""
    names = {split: getattr(config, split) if split in SPLITS else split for split in splits}
    required = {name for split, name in names.items() if split != "test"}
    first = {name: split for split, name in reversed(names.items()) if name}
    return {
        split: name == PairsConfig.test and name not in required
        for split, name in names.items()
        if first.get(name) == split
    }
