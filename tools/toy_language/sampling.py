"""Drawing the small parts of a meaning: noun phrases, modals, times, places.

Only `Random.random()` is used: it is the one method whose sequence Python promises to keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import TypeVar

from tools.toy_language import function_words as words
from tools.toy_language.lexicon import ADJECTIVES, SIDES, describes, goal, location, nouns_of
from tools.toy_language.meaning_tree import (
    Adjective,
    Adverb,
    Determiner,
    Modal,
    Noun,
    NounPhrase,
    Phrase,
)

T = TypeVar("T")

_POSSESSIVE, _NUMBER = "possessive", "number"
_Choices = tuple[tuple[Determiner | str, int], ...]  # with their weights
_SINGULAR: _Choices = (
    (words.THE, 50),
    (_POSSESSIVE, 12),
    (words.THIS, 8),
    (words.A, 24),
    (words.EVERY, 3),
    (words.NO, 3),
)
_MASS: _Choices = ((words.THE, 50), (_POSSESSIVE, 12), (words.THIS, 8), (words.BARE, 30))
_PLURAL: _Choices = (
    (words.THE, 40),
    (_POSSESSIVE, 12),
    (words.THIS, 8),
    (words.BARE, 12),
    (words.SOME, 6),
    (words.MANY, 6),
    (words.NO, 2),
    (_NUMBER, 7),
)
_DEFINITE = 3  # the first three of each table


def pick(rng: Random, items: Sequence[T]) -> T:
    """One of the items, each as likely as the others."""
    return items[int(rng.random() * len(items))]


def chance(rng: Random, probability: float) -> bool:
    """True with the probability given."""
    return rng.random() < probability


def weighted(rng: Random, items: Sequence[tuple[T, float]]) -> T:
    """An item of (item, weight) pairs."""
    left = rng.random() * sum(weight for _, weight in items)
    for item, weight in items:
        left -= weight
        if left < 0:
            return item
    return items[-1][0]


def noun_phrase(
    rng: Random, noun: Noun, *, definite: bool = False, plural: bool | None = None, many: bool = False
) -> NounPhrase:
    """A phrase around the noun; `plural` is drawn if None, `many` allows numbers up to 9,999."""
    mass = not noun.en_plural
    if plural is None:
        plural = chance(rng, 0.3)
    plural = plural and not mass
    table = _MASS if mass else _PLURAL if plural else _SINGULAR
    choice = weighted(rng, table[:_DEFINITE] if definite else table)
    number = _number(rng, many) if choice is _NUMBER else 0
    adjective = _attribute(rng, noun) if chance(rng, 0.3) else None
    return NounPhrase(noun, _determiner(rng, choice, noun), plural, adjective, number)


def counted_phrase(rng: Random, noun: Noun) -> NounPhrase:
    """Draws a number of things, such as "twenty-three old books"."""
    adjective = _attribute(rng, noun) if chance(rng, 0.1) else None
    return NounPhrase(noun, words.BARE, True, adjective, _number(rng, True))


def _determiner(rng: Random, choice: Determiner | str, noun: Noun) -> Determiner:
    if choice is _POSSESSIVE:
        return pick(rng, words.POSSESSIVES) if _can_be_owned(noun) else words.THE
    return words.BARE if isinstance(choice, str) else choice


def _can_be_owned(noun: Noun) -> bool:
    return "kin" in noun.classes or not {"person", "road", "waters", "place"} & set(noun.classes)


@cache
def adjectives_for(noun: Noun) -> tuple[Adjective, ...]:
    """Adjectives that may stand before the noun."""
    return tuple(adjective for adjective in ADJECTIVES if describes(adjective, noun))


def _attribute(rng: Random, noun: Noun) -> Adjective | None:
    choices = adjectives_for(noun)
    return pick(rng, choices) if choices else None


def _number(rng: Random, many: bool) -> int:
    """Each length of number alike. Not one that ends in "one": German nouns after it follow no clear rule."""
    low, high = pick(rng, ((2, 20), (21, 99), (100, 999), (1000, 9999)) if many else ((2, 12),))
    number = low + int(rng.random() * (high - low + 1))
    return number + 1 if number % 100 == 1 else number


def modal(rng: Random, tense: str, negated: bool) -> Modal:
    """A modal verb of the tense, one that can be denied if it will be."""
    fitting = [item for item in words.MODALS if item.tense == tense and (item.negatable or not negated)]
    return pick(rng, fitting)


def time(rng: Random, tense: str, middle: bool) -> Adverb:
    """`middle` allows adverbs that English puts before the verb."""
    return pick(rng, [item for item in words.TIMES[tense] if middle or not item.middle])


def place(rng: Random) -> Phrase:
    """Where something happens."""
    if chance(rng, 0.25):
        noun = pick(rng, nouns_of("site"))
        en, de = pick(rng, SIDES)
        return Phrase(en, de, "dat", _surroundings(rng, noun))
    noun = pick(rng, nouns_of("building", "place", "bridge", "lake", "square", "playground"))
    return Phrase(*location(noun.en), _surroundings(rng, noun))


def destination(rng: Random, classes: tuple[str, ...]) -> Phrase:
    """Where a verb of motion leads to: a place of the classes given."""
    noun = pick(rng, nouns_of(*classes))
    return Phrase(*goal(noun.en), _surroundings(rng, noun))


def _surroundings(rng: Random, noun: Noun) -> NounPhrase:
    phrase = noun_phrase(rng, noun, definite=True, plural=False)
    return phrase._replace(determiner=words.A) if chance(rng, 0.12) else phrase
