"""Checks of arguments that users of the Python API give."""

import dataclasses
import difflib
import reprlib
from collections.abc import Iterable
from typing import Any

from tfm.errors import UserError


def check_texts(name: str, given: Iterable[str]) -> list[str]:
    """The argument `name` as a list of texts; a text alone would be one of its letters.

    Raises:
      UserError: it is something else.
    """
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise UserError(
            f"Expected a list of texts as {name}, got {reprlib.repr(given)}: put a single text in brackets."
        )
    texts = list(given)
    for text in texts:
        if not isinstance(text, str):
            raise UserError(f"Expected texts in {name}, got {reprlib.repr(text)} among them: leave it out.")
    return texts


def replace_fields(section: Any, fields: dict[str, Any]) -> Any:
    """Returns a dataclass with other values of some fields.

    Raises:
      UserError: if a field does not exist, or a value is invalid.
    """
    known = [field.name for field in dataclasses.fields(section)]
    for name in fields:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}."
            raise UserError(f"There is no option {name!r}: {hint}")
    return dataclasses.replace(section, **fields)


def check_count(name: str, given: Any, what: str) -> None:
    """Checks the argument `name`, how many there are to be of `what`.

    Raises:
      UserError: it is no integer above 0.
    """
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise UserError(f"Expected at least 1 {what} as {name}, got {given!r}.")
