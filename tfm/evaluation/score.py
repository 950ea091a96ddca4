"""The type of the scores that all tasks report."""

from collections.abc import Mapping
from typing import Any, NamedTuple

MAX_DIGITS = 10


class Score(NamedTuple):
    """A score of a whole split.

    Attributes:
      name: name of the metric.
      value: value of the metric.
      signature: unit, settings and number of examples: what a reader needs to reproduce the value.
      digits: digits after the decimal point in printed scores.
    """

    name: str
    value: float
    signature: str
    digits: int = 2

    def __str__(self):
        return f"{self.name:<27}{self.format_value():>7}  {self.signature}"

    def format_value(self) -> str:
        """Returns the value with `digits` digits after the decimal point."""
        return f"{self.value:.{self.digits}f}"

    @classmethod
    def read(cls, saved: Mapping[str, Any]) -> "Score":
        """Returns a score from its fields, as read from JSON.

        Raises:
          KeyError, TypeError, ValueError: if a field is missing or has the wrong type.
        """
        name, value, signature, digits = (saved[field] for field in cls._fields)
        if digits not in range(MAX_DIGITS + 1):
            raise ValueError(f"expected 0 to {MAX_DIGITS} digits, got {digits!r:.20}")
        return cls(str(name), float(value), str(signature), int(digits))
