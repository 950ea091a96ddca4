"""Sentence pairs from two text files, line i of one the translation of line i of the other."""

import functools
import os
from collections.abc import Iterable, Sequence

from tfm.data.lines import Lines
from tfm.data.problems import collect
from tfm.data.text_files import OPENERS, decompress, find_file
from tfm.data.tokenizer import LONGEST_TEXT
from tfm.errors import UserError


def find_problems(stem: str, languages: Sequence[str], cache_dir: str) -> list[str]:
    """Why the two files of a split cannot be used: error messages, none where they can.

    Reads both files whole, so that no error is found later, behind a long tokenisation.
    """
    problems: list[str] = []
    sides: list[Lines] = []
    for language in languages:
        with collect(problems):
            side = _open_side(stem, language, cache_dir)
            side.check()
            sides.append(side)
    if not problems:
        with collect(problems):
            _check_pairs(*sides)
    return problems


def some_file_exists(stem: str, languages: Sequence[str]) -> bool:
    """Whether there is a file of either side."""
    names = (f"{stem}.{language}{ending}" for language in languages for ending in OPENERS)
    return any(map(os.path.lexists, names))


class TextPairs:
    """Random access to the lines of two files: `pairs[i]` is (source, target), both stripped.

    Plain files are memory-mapped, compressed ones unpacked once into `cache_dir`; only line offsets are held.

    Raises:
      UserError: a file is missing, empty or not UTF-8, or the line counts differ.
    """

    def __init__(self, stem: str, languages: Sequence[str], cache_dir: str):
        self._sides = [_open_side(stem, language, cache_dir) for language in languages]
        _check_counts(*self._sides)

    def __len__(self):
        return len(self._sides[0])

    def __getitem__(self, index):
        if isinstance(index, slice):
            for side in self._sides:
                side.check_unchanged()
            pairs = [self[i] for i in range(*index.indices(len(self)))]
            for side in self._sides:
                side.check_unchanged()
            return pairs
        source, target = self._sides
        return source[index], target[index]

    @functools.cached_property
    def fingerprint(self) -> str:
        """Identity of the content."""
        return "text-" + "-".join(side.sha256() for side in self._sides)


def _open_side(stem, language, cache_dir):
    path = find_file(f"{stem}.{language}")
    return Lines(decompress(path, cache_dir), shown_as=path)


def _check_counts(source, target):
    """
    Raises:
      UserError: a file has no lines, or they have different numbers of them.
    """
    for side in (source, target):
        if not len(side):
            raise UserError(f"{side.shown_as} is empty: expected one sentence a line.")
    if len(source) != len(target):
        raise UserError(
            f"{source.shown_as} has {len(source):,} lines and {target.shown_as} has {len(target):,}: "
            "each line must translate the line of the same number."
        )


def _check_pairs(source, target):
    """
    Raises:
      UserError: the sides are one file, differ in their lines, or have no pair to train on.
    """
    if os.path.samefile(source.shown_as, target.shown_as):
        raise UserError(
            f"{source.shown_as} and {target.shown_as} are the same file: a translation of itself; check the "
            "languages and links. To train on copies, give a copy of the file."
        )
    _check_counts(source, target)
    require_usable(zip(source, target, strict=True), f"{source.shown_as} and {target.shown_as}")


def require_usable(pairs: Iterable[tuple[str, ...]], shown_as: str) -> None:
    """Reads pairs up to the first that can be trained on.

    Raises:
      UserError: there is none.
    """
    usable = (
        source and target and max(len(source.encode()), len(target.encode())) <= LONGEST_TEXT
        for source, target in pairs
    )
    if not any(usable):
        raise UserError(
            f"No pair of {shown_as} has text on both sides, of at most {LONGEST_TEXT:,} bytes: expected one "
            "sentence a line."
        )
