"""A score of an evaluation, as all tasks report them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

MOST_DIGITS = 9


class Score(NamedTuple):
    """A score of a whole split.

    Attributes:
      name: what it is.
      value: the number.
      signature: how to repeat it.
      digits: behind the decimal point, where it is shown.
    """

    name: str
    value: float
    signature: str
    digits: int = 2

    def __str__(self):
        return f"{self.name:<27}{self.format_value():>7}  {self.signature}"

    def format_value(self) -> str:
        """The value with its digits."""
        return f"{self.value:.{self.digits}f}"

    @classmethod
    def read(cls, saved: Mapping[str, Any]) -> "Score":
        """The score of which `saved` has the fields, as JSON gives them; older ones have no digits.

        Raises:
          KeyError, TypeError, ValueError: it has not.
        """
        digits = saved.get("digits", 2)
        if digits not in range(MOST_DIGITS + 1):
            raise ValueError(f"digits must be an integer from 0 to {MOST_DIGITS}, got {digits!r}")
        return cls(str(saved["name"]), float(saved["value"]), str(saved["signature"]), int(digits))
