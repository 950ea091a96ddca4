"""The corpus: five splits of sentence pairs, a pure function of the seed below."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import NamedTuple
from zlib import crc32

from tfm.datasets.toy_translation import english, german
from tfm.datasets.toy_translation.meaning import Adjective, Sentence, Word, align
from tfm.datasets.toy_translation.reference import (
    Puzzle,
    Telling,
    draw_puzzle,
    draw_telling,
    famous_twins,
    held_out_deciders,
    tell,
)
from tfm.datasets.toy_translation.sampling import pick
from tfm.datasets.toy_translation.sentences import long_sentence, sentence
from tfm.errors import UserError

SIZES = {"train": 50_000, "validation": 1_000, "test": 1_000, "pronoun": 500, "long": 500}
LONGEST = 20  # words of a training sentence, in either language; the `long` split begins above
_LONGEST_OF_ALL = 40
_SEED = 2017


class Example(NamedTuple):
    """A pair of sentences. `wrong` (only in the `pronoun` split): `de` with the other noun's pronoun."""

    en: str
    de: str
    wrong: str
    alignment: str  # Pharaoh format, "0-0 1-2", over words divided by blanks


def generate(split: str) -> Iterator[Example]:
    """The examples of a split, in their fixed order. Raises UserError for an unknown split."""
    if split not in SIZES:
        raise UserError(f"expected a split out of {', '.join(SIZES)}, got {split!r}; choose one of these")
    rng = Random(_SEED + list(SIZES).index(split))
    challenges = {"pronoun": _puzzles, "long": _long}
    stream = challenges[split](rng) if split in challenges else _ordinary(rng, split)
    return islice(_unique(stream), SIZES[split])


def realise(meaning: Sentence) -> Example:
    """A sentence in both languages."""
    return _translated(meaning, english.say(meaning))


def _translated(meaning: Sentence, source: list[Word]) -> Example:
    target = german.say(meaning)
    return Example(_text(source), _text(target), "", align(source, target))


def _text(words: list[Word]) -> str:
    return " ".join(word.text for word in words)


def _unique(examples: Iterator[Example]) -> Iterator[Example]:
    seen = set()
    for example in examples:
        if example.en not in seen:
            seen.add(example.en)
            yield example


def _ordinary(rng: Random, split: str) -> Iterator[Example]:
    """Every English sentence belongs to one split by its hash, so that the three can share none."""
    while True:
        meaning = sentence(rng)
        source = english.say(meaning)
        if len(source) > LONGEST or _split_of(_text(source)) != split:
            continue
        example = _translated(meaning, source)
        if max(_lengths(example)) <= LONGEST:
            yield example


def _split_of(english_sentence: str) -> str:
    return {0: "validation", 1: "test"}.get(crc32(english_sentence.encode()) % 10, "train")


def _puzzles(rng: Random) -> Iterator[Example]:
    """Twins: the same sentence with an adjective about the subject, then with one about the object.

    So a model that ignores the adjective is right about exactly half of them.
    """
    yield from map(_puzzle_example, famous_twins())
    seen = set()
    while True:
        puzzle, telling = draw_puzzle(rng), draw_telling(rng)
        choices = [held_out_deciders(puzzle, about) for about in (0, 1)]
        genders = {noun.gender for noun in puzzle.nouns}
        if (puzzle, telling) in seen or len(genders) == 1 or not all(choices):
            continue
        seen.add((puzzle, telling))
        for about in (0, 1):
            yield _puzzle_example((puzzle, telling, pick(rng, choices[about]), about))


def _puzzle_example(item: tuple[Puzzle, Telling, Adjective, int]) -> Example:
    puzzle, telling, adjective, about = item
    noun, other = puzzle.nouns[about], puzzle.nouns[1 - about]
    right = realise(tell(puzzle, telling, adjective, noun.gender))
    wrong = realise(tell(puzzle, telling, adjective, other.gender))
    return right._replace(wrong=wrong.de)


def _long(rng: Random) -> Iterator[Example]:
    while True:
        example = realise(long_sentence(rng))
        if min(_lengths(example)) > LONGEST and max(_lengths(example)) <= _LONGEST_OF_ALL:
            yield example


def _lengths(example: Example) -> tuple[int, int]:
    return len(example.en.split()), len(example.de.split())
