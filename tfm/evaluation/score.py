"""A score of an evaluation, as all tasks report them."""

from typing import NamedTuple


class Score(NamedTuple):
    """A score of a whole split: its name, its value, and its signature, which says how to repeat it."""

    name: str
    value: float
    signature: str

    def __str__(self):
        return f"{self.name:<27}{self.value:7.2f}  {self.signature}"
