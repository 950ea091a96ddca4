"""Pairs of symbol sequences as functions for `data.kind`. They test generalization to longer sequences.

    copy       the target is the source
    reverse    the target is the source in reverse order
    add        the source is two decimal numbers, the target is their sum, all with the lowest digit first

Dehghani et al. 2019, section 3.4. The splits "train" and "validation" have sources of 1 to `MAX_TRAINED`
symbols. The splits "test", "double" and "quadruple" have sources of the length in `LENGTHS`, or one symbol
less if the two numbers of a sum need it to have equally many digits.
"""

import random
import string
from collections.abc import Callable

from tfm.data.config import PairsConfig
from tfm.data.data_errors import MissingFile
from tfm.data.source import Row, Source, hash_rows, hold

MAX_TRAINED = 10  # symbols
SYMBOLS = string.ascii_lowercase[:20]
SIZES = {"train": 20_000, "validation": 200, "test": 200, "double": 200, "quadruple": 200}
LENGTHS = {"test": MAX_TRAINED, "double": 2 * MAX_TRAINED, "quadruple": 4 * MAX_TRAINED}


def copy(config: PairsConfig, split: str) -> Source:
    """Returns random sequences of letters between blanks, and their copies.

    Raises:
      MissingFile: if there is no such split.
    """
    return _make_source("copy", split, lambda rng, length: 2 * (_draw_symbols(rng, length),))


def reverse(config: PairsConfig, split: str) -> Source:
    """Returns random sequences of letters between blanks, and their reversals.

    Raises:
      MissingFile: if there is no such split.
    """

    def draw(rng: random.Random, length: int) -> Row:
        text = _draw_symbols(rng, length)
        return text, text[::-1]

    return _make_source("reverse", split, draw)


def add(config: PairsConfig, split: str) -> Source:
    """Returns sums of two numbers and their values, lowest digit first, with blanks between all symbols.

    For example, "2 1 + 9 0" (12 + 9) has the value "1 2" (21). Both numbers have equally many digits, of
    which the last may be zeros. Each has at least one digit, so a sum has at least three symbols.

    Raises:
      MissingFile: if there is no such split.
    """

    def draw(rng: random.Random, length: int) -> Row:
        digits = max((length - 1) // 2, 1)
        numbers = [rng.randrange(10**digits) for _ in range(2)]
        first, second = (f"{number:0{digits}}"[::-1] for number in numbers)
        return " ".join(f"{first}+{second}"), " ".join(str(sum(numbers))[::-1])

    return _make_source("add", split, draw)


def _draw_symbols(rng: random.Random, length: int) -> str:
    """Returns random symbols with blanks between them, so that each of them is a word."""
    return " ".join(rng.choices(SYMBOLS, k=length))


def _make_source(name: str, split: str, draw: Callable[[random.Random, int], Row]) -> Source:
    """Returns the rows of a split. `draw` maps a random generator and a length to a row."""
    if split not in SIZES:
        raise MissingFile(f"Expected a split out of {', '.join(SIZES)}, got {split!r}.")
    rng, longest = random.Random(split), LENGTHS.get(split)
    rows = [draw(rng, longest or rng.randint(1, MAX_TRAINED)) for _ in range(SIZES[split])]
    return hold(rows, f"{name}-{hash_rows(rows)}")
