"""Columns by name, also columns within others, such as "translation": {"de": ..., "en": ...}."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tfm.errors import UserError

PAIR = "translation"  # the column in which Hugging Face's data sets for translation keep both languages
Path = tuple[str, ...]


def label_text(value: float) -> str:
    """Returns the text of a label that is a number or a boolean, as JSON writes it: 1, 2.5, true."""
    return str(value).lower()


# {column that may contain lists of texts: function that joins the texts of a list}
ListColumns = Mapping[str, Callable[[Iterable[str]], str]]


def join_texts(texts: Iterable[str]) -> str:
    """Returns texts, such as the source documents of a summary, as one text with blanks between them."""
    return " ".join(filter(None, texts))


def join_words(words: Iterable[str]) -> str:
    """Returns words, or their tags, as a text with a blank between two words.

    White space within a word becomes "_", and so does an empty word, so that the text has as many words.
    """
    return " ".join("_".join(word.split()) or "_" for word in words)


def name_class(value: int | None, names: Sequence[str], shown_as: str) -> str:
    """Returns the name of a class.

    Args:
      value: the number of the class. -1 or None stands for an unknown class.
      names: the names of all classes.
      shown_as: what an error message calls the data.

    Raises:
      UserError: if the class is unknown.
    """
    if value is None or not 0 <= value < len(names):
        raise UserError(
            f"Some rows of {shown_as} have the label {value} instead of a class from 0 to {len(names) - 1}, "
            "as in test splits without labels. Use another split. An empty data.test leaves out the test "
            "split."
        )
    return names[value]


def find_path(column: str, tree: Mapping[str, Any]) -> Path:
    """Returns the keys that lead to a column.

    Args:
      column: the name of the column; "a.b" is the column b within a. A language is also searched for in
        "translation".
      tree: {column: any value, or a mapping of the columns within the column}.

    Raises:
      ValueError: if the column is missing. Its message is the reason for an error message.
    """
    paths = list(_list_paths(tree))
    for path in ((column,), (PAIR, column), tuple(column.split("."))):
        if path in paths:
            return path
    names = ", ".join(repr(".".join(path)) for path in paths)
    raise ValueError(f"it has no column {column!r}, but {names or 'none'}")


def follow(tree: Any, path: Path) -> Any:
    """Returns the value that the keys lead to, None if a value on the way is None.

    Raises:
      ValueError: if a key is missing. Its message is the reason for an error message.
    """
    for key in path:
        if tree is None:
            return None
        if not isinstance(tree, Mapping) or key not in tree:
            raise ValueError(f"it has no column {'.'.join(path)!r}")
        tree = tree[key]
    return tree


def _list_paths(tree: Mapping[str, Any], parent: Path = ()) -> Iterator[Path]:
    """Yields the keys that lead to each column that has no columns within it."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _list_paths(value, (*parent, name))
        else:
            yield (*parent, name)
