"""The corpus: five splits of sentence pairs, a pure function of the seed below."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from random import Random
from typing import NamedTuple, TypeVar
from zlib import crc32

from tfm.datasets.toy_language import NOUN_TAGS, TAGGED_SIZES, Example, PronounWords
from tfm.errors import UserError
from tools.toy_language import english, german
from tools.toy_language.meaning_tree import Adjective, Sentence, Word, align
from tools.toy_language.pronoun_puzzles import (
    Puzzle,
    Telling,
    draw_puzzle,
    draw_telling,
    famous_twins,
    held_out_deciders,
    tell,
)
from tools.toy_language.sampling import pick
from tools.toy_language.sentences import long_sentence, sentence

# Nodes of the meaning tree that a sentence of the split `pronoun` says in one word of either language.
_NODES = (
    *("0.subject.noun", "0.object0.noun", "0.subject.determiner", "0.object0.determiner"),
    *("1.subject.noun", "1.predicate.adjective"),
)
SIZES = {"train": 50_000, "validation": 1_000, "test": 1_000, "pronoun": 500, "long": 500}
LONGEST = 20  # words of a training sentence, in either language; the `long` split begins above
_LONGEST_OF_ALL = 40
_SEED = 2017
T = TypeVar("T")


def find_pronoun_words() -> Iterator[tuple[PronounWords, PronounWords, bool]]:
    """(words of the English sentence, words of the German one, whether the pronoun is the subject's).

    In the order of `generate("pronoun")`, whose sentences 2 n and 2 n + 1 are twins.
    """
    items = _unique(_puzzles(_random("pronoun")), lambda item: _text(english.say(_told(item))))
    for item in islice(items, SIZES["pronoun"]):
        source, target = (_find_words(language.say(_told(item))) for language in (english, german))
        yield source, target, item.about == 0


def _find_words(said: list[Word]) -> PronounWords:
    found = {node: number for number, word in enumerate(said) for node in word.nodes}
    return PronounWords._make(found.get(node) for node in _NODES)


def generate(split: str) -> Iterator[Example]:
    """The examples of a split, in their fixed order. Raises UserError for an unknown split."""
    if split not in SIZES:
        raise UserError(f"expected a split out of {', '.join(SIZES)}, got {split!r}; choose one of these")
    rng = _random(split)
    challenges = {"pronoun": lambda rng: map(_puzzle_example, _puzzles(rng)), "long": _long}
    stream = challenges[split](rng) if split in challenges else _ordinary(rng, split)
    return islice(_unique(stream, lambda example: example.en), SIZES[split])


def _random(split: str) -> Random:
    return Random(_SEED + list(SIZES).index(split))


def realise(meaning: Sentence) -> Example:
    """A sentence in both languages."""
    return _translated(meaning, english.say(meaning))


def _translated(meaning: Sentence, source: list[Word]) -> Example:
    target = german.say(meaning)
    return Example(_text(source), _text(target), "", align(source, target))


def _text(words: list[Word]) -> str:
    return " ".join(word.text for word in words)


def _unique(items: Iterator[T], english_of: Callable[[T], str]) -> Iterator[T]:
    seen = set()
    for item in items:
        text = english_of(item)
        if text not in seen:
            seen.add(text)
            yield item


def generate_noun_tags(split: str) -> Iterator[str]:
    """The gender and the case of the nouns of each German sentence, in the order of `generate(split)`.

    A line has an item for each word: "m.nom", "f.dat" and so on for a noun, "-" for another word.
    """
    items = _unique(_ordinary_meanings(_random(split), split), lambda item: item[1].en)
    for meaning, _ in islice(items, TAGGED_SIZES[split]):
        yield " ".join(_noun_tag(word) for word in german.say(meaning))


def _noun_tag(word: Word) -> str:
    ends = (".".join(node.split(".")[-2:]) for node in word.nodes)
    return next((end for end in ends if end in NOUN_TAGS), "-")


def _ordinary(rng: Random, split: str) -> Iterator[Example]:
    return (example for _, example in _ordinary_meanings(rng, split))


def _ordinary_meanings(rng: Random, split: str) -> Iterator[tuple[Sentence, Example]]:
    """Every English sentence belongs to one split by its hash, so that the three can share none."""
    while True:
        meaning = sentence(rng)
        source = english.say(meaning)
        if len(source) > LONGEST or _split_of(_text(source)) != split:
            continue
        example = _translated(meaning, source)
        if max(_lengths(example)) <= LONGEST:
            yield meaning, example


def _split_of(english_sentence: str) -> str:
    return {0: "validation", 1: "test"}.get(crc32(english_sentence.encode()) % 10, "train")


class _Item(NamedTuple):
    """A puzzle of the split `pronoun`, told; `about` is 0 for the subject, 1 for the object."""

    puzzle: Puzzle
    telling: Telling
    adjective: Adjective
    about: int


def _puzzles(rng: Random) -> Iterator[_Item]:
    """Twins: the same sentence with an adjective about the subject, then with one about the object.

    So a model that ignores the adjective is right about exactly half of them.
    """
    yield from (_Item(*item) for item in famous_twins())
    seen = set()
    while True:
        puzzle, telling = draw_puzzle(rng), draw_telling(rng)
        choices = [held_out_deciders(puzzle, about) for about in (0, 1)]
        genders = {noun.gender for noun in puzzle.nouns}
        if (puzzle, telling) in seen or len(genders) == 1 or not all(choices):
            continue
        seen.add((puzzle, telling))
        for about in (0, 1):
            yield _Item(puzzle, telling, pick(rng, choices[about]), about)


def _puzzle_example(item: _Item) -> Example:
    wrong = realise(_told(item._replace(about=1 - item.about)))
    return realise(_told(item))._replace(wrong=wrong.de)


def _told(item: _Item) -> Sentence:
    return tell(item.puzzle, item.telling, item.adjective, item.puzzle.nouns[item.about].gender)


def _long(rng: Random) -> Iterator[Example]:
    while True:
        example = realise(long_sentence(rng))
        if min(_lengths(example)) > LONGEST and max(_lengths(example)) <= _LONGEST_OF_ALL:
            yield example


def _lengths(example: Example) -> tuple[int, int]:
    return len(example.en.split()), len(example.de.split())
