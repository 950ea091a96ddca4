"""A score of an evaluation, as all tasks report them."""

from typing import NamedTuple


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
        return f"{self.name:<27}{self.value:7.{self.digits}f}  {self.signature}"
