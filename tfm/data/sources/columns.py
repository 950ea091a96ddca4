"""Columns by name, also columns within others, such as "translation": {"de": ..., "en": ...}."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfm.errors import UserError

PAIR = "translation"  # the column in which Hugging Face's data sets for translation keep both languages
Path = tuple[str, ...]


def find_path(column: str, tree: Mapping[str, Any]) -> Path:
    """Returns the keys that lead to a column.

    Args:
      column: its name; "a.b" is the column b within a. A language is also looked for in "translation".
      tree: column -> anything, or a mapping of the columns within it.

    Raises:
      ValueError: if there is no such column. Its text is the reason for an error message.
    """
    for path in ((column,), (PAIR, column), tuple(column.split("."))):
        if _has(tree, path):
            return path
    raise ValueError(f"it has no column {column!r}, but {', '.join(map(repr, _list_names(tree))) or 'none'}")


def follow(tree: Any, path: Path) -> Any:
    """Returns what the keys lead to.

    Raises:
      ValueError: if a key is missing. Its text is the reason for an error message.
    """
    for key in path:
        if not isinstance(tree, Mapping) or key not in tree:
            raise ValueError(f"it has no column {'.'.join(path)!r}")
        tree = tree[key]
    return tree


def require_two_columns(columns: Sequence[str]) -> None:
    """
    Raises:
      UserError: if one column is both source and target.
    """
    if len(set(columns)) < len(columns):
        raise UserError(
            f"Source and target are both the column {columns[0]!r}, a translation of a text into itself: set "
            "data.source_column and data.target_column."
        )


def _has(tree, path):
    try:
        follow(tree, path)
    except ValueError:
        return False
    return True


def _list_names(tree: Mapping[str, Any], parent: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _list_names(value, f"{parent}{name}.")
        else:
            yield f"{parent}{name}"
