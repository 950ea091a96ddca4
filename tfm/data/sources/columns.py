"""Columns by name, also columns within others, such as "translation": {"de": ..., "en": ...}."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

PAIR = "translation"  # the column in which Hugging Face's data sets for translation keep both languages
Path = tuple[str, ...]


def find_path(column: str, tree: Mapping[str, Any]) -> Path:
    """Returns the keys that lead to a column.

    Args:
      column: the name of the column; "a.b" is the column b within a. A language is also searched for in
        "translation".
      tree: {column: any value, or a mapping of the columns within the column}.

    Raises:
      ValueError: if the column is missing. Its message is the reason for an error message.
    """
    for path in ((column,), (PAIR, column), tuple(column.split("."))):
        with contextlib.suppress(ValueError):
            follow(tree, path)
            return path
    raise ValueError(f"it has no column {column!r}, but {', '.join(map(repr, _list_names(tree))) or 'none'}")


def follow(tree: Any, path: Path) -> Any:
    """Returns the value that the keys lead to.

    Raises:
      ValueError: if a key is missing. Its message is the reason for an error message.
    """
    for key in path:
        if not isinstance(tree, Mapping) or key not in tree:
            raise ValueError(f"it has no column {'.'.join(path)!r}")
        tree = tree[key]
    return tree


def _list_names(tree: Mapping[str, Any], parent: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _list_names(value, f"{parent}{name}.")
        else:
            yield f"{parent}{name}"
