"""Divides one corpus of sentence pairs into splits that share no sentence."""

import random
import re
from collections.abc import Iterable, Sequence

from tfm.data.source import Row

MAX_GROUP_PAIRS = 10  # of a group that validation and test data are drawn from
NO_WORDS = re.compile(r"\W+")


def hold_out(rows: Iterable[Row], splits: Sequence[str], count: int, seed: int) -> list[str | None]:
    """Assigns each pair to a split, so that no two splits share a source or a target.

    Many corpora translate a sentence several times. If such pairs were divided at random, the model would be
    trained on the sources or targets of test pairs. Pairs that share a source or a target are therefore one
    group. A random group of at most `MAX_GROUP_PAIRS` pairs gives its first pair to a split in `splits`, and
    its other pairs belong to no split. All other groups are training data. Texts are the same if they differ
    only in case, punctuation and spaces.

    Args:
      rows: the pairs. They are read once and not kept.
      splits: names of the splits to hold out.
      count: number of pairs of each of these splits.
      seed: seed of the random choice.

    Returns:
      For each pair the name of its split, "train", or None if the pair is left out because it repeats an
      earlier pair or belongs to the group of a pair that was held out.

    Raises:
      ValueError: if the groups are too few. The message says how many there are.
    """
    groups = _Groups()
    first_row_of_pair: dict[tuple[int, int], int] = {}
    texts_of_row: list[int] = []
    repeats: list[bool] = []
    for number, row in enumerate(rows):
        pair = groups.add(f"source {_simplify(row[0])}"), groups.add(f"target {_simplify(row[1])}")
        groups.join(*pair)
        texts_of_row.append(pair[0])
        repeats.append(first_row_of_pair.setdefault(pair, number) != number)
    group_of_row = [groups.find(text) for text in texts_of_row]
    rows_of_group: dict[int, list[int]] = {}
    for number, group in enumerate(group_of_row):
        if not repeats[number]:
            rows_of_group.setdefault(group, []).append(number)
    small = [group for group, members in rows_of_group.items() if len(members) <= MAX_GROUP_PAIRS]
    needed = count * len(splits)
    if len(small) <= needed:
        raise ValueError(
            f"Expected more than {needed:,} groups of pairs that share no sentence, got {len(small):,}."
        )
    assigned: list[str | None] = [None if repeated else "train" for repeated in repeats]
    for place, group in enumerate(random.Random(seed).sample(small, needed)):
        first, *others = rows_of_group[group]
        assigned[first] = splits[place // count]
        for number in others:
            assigned[number] = None
    return assigned


class _Groups:
    """Texts in groups that are joined (union-find with path halving)."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._parents: list[int] = []

    def add(self, text: str) -> int:
        """Returns the number of a text, which is a group of its own if it is new."""
        number = self._numbers.setdefault(text, len(self._parents))
        if number == len(self._parents):
            self._parents.append(number)
        return number

    def find(self, number: int) -> int:
        """Returns the number of the text that stands for the group of a text."""
        while self._parents[number] != number:
            self._parents[number] = self._parents[self._parents[number]]
            number = self._parents[number]
        return number

    def join(self, first: int, second: int) -> None:
        """Makes the groups of two texts one group."""
        self._parents[self.find(second)] = self.find(first)


def _simplify(text: str) -> str:
    """Returns the words of a text in lower case, or the text itself if it has none."""
    return NO_WORDS.sub(" ", text.casefold()).strip() or text
