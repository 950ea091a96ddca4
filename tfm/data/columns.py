"""Columns of a table by name, also those within others, as "translation": {"de": ..., "en": ...}."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfm.errors import UserError

PAIR = "translation"  # the column in which Hugging Face's data sets for translation keep both languages
Path = tuple[str, ...]


def find_path(column: str, tree: Mapping[str, Any]) -> Path:
    """The keys that lead to a column.

    Args:
      column: its name; "a.b" is the column b within a. A language is also looked for in "translation".
      tree: column -> anything, or the same of the columns within it.

    Raises:
      ValueError: there is none; the reason for an error message.
    """
    for path in ((column,), (PAIR, column), tuple(column.split("."))):
        if _has(tree, path):
            return path
    raise ValueError(f"it has no column {column!r}, but {', '.join(map(repr, _names(tree))) or 'none'}")


def follow(tree: Any, path: Path) -> Any:
    """What the keys lead to.

    Raises:
      ValueError: nothing; the reason for an error message.
    """
    found = tree
    for key in path:
        if not isinstance(found, Mapping) or key not in found:
            raise ValueError(f"it has no column {'.'.join(path)!r}")
        found = found[key]
    return found


def check_columns(columns: Sequence[str]) -> None:
    """
    Raises:
      UserError: one column is both source and target.
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


def _names(tree: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _names(value, f"{before}{name}.")
        else:
            yield f"{before}{name}"
