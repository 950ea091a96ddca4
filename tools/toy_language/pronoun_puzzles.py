"""What does "it" mean? Sentences whose German pronoun depends on which noun a predicate can be about.

In "The animal didn't cross the street because it was too tired / wide" both nouns could be "it". A frame
names the classes of the two nouns and the verbs between them; an adjective decides when it is a trait of
one noun only. Combinations (subject, object, adjective) are divided by a stable hash: those held out are
never seen in training and make up the `pronoun` split.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import NamedTuple
from zlib import crc32

from tools.toy_language import function_words as words
from tools.toy_language.clauses import is_somehow, person
from tools.toy_language.lexicon import ADJECTIVES, VERBS, describes, nouns_of, trait_of
from tools.toy_language.meaning_tree import (
    Adjective,
    Adverb,
    Clause,
    Link,
    Modal,
    Noun,
    NounPhrase,
    Participant,
    Predicate,
    Sentence,
    Verb,
)
from tools.toy_language.sampling import adjectives_for, chance, modal, noun_phrase, pick, weighted

_VERBS = {verb.prefix + verb.de: verb for verb in VERBS}

# subject class, object class, verbs, weight
_FRAMES = (
    (("animal", "road", ("überqueren",)), 3),
    (("animal", "way", ("benutzen",)), 1),
    (("animal", "waters", ("überqueren", "erkunden")), 2),
    (("animal", "food", ("fressen", "probieren")), 3),
    (("animal", "building", ("betreten", "erkunden")), 2),
    (("animal", "furniture", ("berühren",)), 1),
    (("animal", "seat", ("benutzen",)), 1),
    (("vehicle", "road", ("überqueren",)), 2),
    (("vehicle", "way", ("benutzen",)), 1),
    (("vessel", "waters", ("überqueren", "erkunden")), 2),
    (("machine", "furniture", ("heben", "bewegen", "tragen")), 2),
)
_FAMOUS = ("animal", "street", ("tired", "wide"))


class Puzzle(NamedTuple):
    """Two participants and what one does with the other. `nouns` is for a subject that is no pronoun."""

    subject: Participant
    verb: Verb
    object: NounPhrase

    @property
    def nouns(self) -> tuple[Noun, Noun]:
        assert isinstance(self.subject, NounPhrase)
        return self.subject.noun, self.object.noun


class Telling(NamedTuple):
    """How a puzzle is told: denied with a reason, done in spite of it, or wished for in vain."""

    link: Link
    degree: Adverb
    tense: str
    negated: bool = False
    contracted: bool = False
    modal: Modal | None = None
    time: Adverb | None = None
    time_first: bool = False


def held_out(subject: Noun, object_: Noun, adjective: Adjective) -> bool:
    """Whether the combination is kept from training: a tenth of all, and the famous two."""
    animal, street, adjectives = _FAMOUS
    famous = subject.en == animal and object_.en == street and adjective.en in adjectives
    return famous or crc32(f"{subject.en}|{object_.en}|{adjective.en}".encode()) % 10 == 0


@cache
def deciders(noun: Noun, other: Noun) -> tuple[Adjective, ...]:
    """Adjectives that can only be about `noun`."""
    return tuple(item for item in ADJECTIVES if trait_of(item, noun) and not trait_of(item, other))


def held_out_deciders(puzzle: Puzzle, about: int) -> list[Adjective]:
    """Adjectives about the subject (0) or the object (1) that training never combines with the two."""
    noun, other = puzzle.nouns[about], puzzle.nouns[1 - about]
    return [item for item in deciders(noun, other) if held_out(*puzzle.nouns, item)]


def famous_twins() -> list[tuple[Puzzle, Telling, Adjective, int]]:
    """The two sentences that the Transformer became known with: puzzle, telling, adjective, which noun."""
    animal, street, adjectives = _FAMOUS
    phrases = [
        NounPhrase(noun, words.THE) for name in (animal, street) for noun in nouns_of(name) if noun.en == name
    ]
    puzzle = Puzzle(phrases[0], _VERBS["überqueren"], phrases[1])
    telling = Telling(words.BECAUSE, words.TOO, "past", negated=True, contracted=True)
    decider = {item.en: item for item in ADJECTIVES}
    return [(puzzle, telling, decider[name], about) for about, name in enumerate(adjectives)]


def tell(puzzle: Puzzle, telling: Telling, adjective: Adjective, gender: str) -> Sentence:
    """The sentence in which "it" has the German gender given, the right one or the wrong one."""
    main = Clause(
        puzzle.subject,
        puzzle.verb,
        (puzzle.object,),
        telling.tense,
        telling.modal,
        telling.negated,
        telling.contracted,
        telling.time,
        telling.time_first,
    )
    predicate = Predicate(adjective, telling.degree)
    return Sentence((main, is_somehow(words.IT[gender], predicate, telling.tense)), (telling.link,))


def drawn_puzzle(rng: Random) -> Sentence:
    """A puzzle as in the training split, about subject or object alike."""
    while True:
        puzzle = draw_puzzle(rng)
        about = int(chance(rng, 0.5))
        noun, other = puzzle.nouns[about], puzzle.nouns[1 - about]
        choices = [item for item in deciders(noun, other) if not held_out(*puzzle.nouns, item)]
        if choices:
            return tell(puzzle, draw_telling(rng), pick(rng, choices), noun.gender)


def draw_puzzle(rng: Random) -> Puzzle:
    """Two participants and a verb between them, from the frames."""
    subject_class, object_class, verbs = weighted(rng, _FRAMES)
    subject, object_ = (_phrase(rng, pick(rng, nouns_of(name))) for name in (subject_class, object_class))
    return Puzzle(subject, _VERBS[pick(rng, verbs)], object_)


def _phrase(rng: Random, noun: Noun) -> NounPhrase:
    """ "the dog", "my brown dog". Not "the lazy dog": it must not compete with the predicate."""
    plain = [item for item in adjectives_for(noun) if item.absolute]
    adjective = pick(rng, plain) if plain and chance(rng, 0.2) else None
    if chance(rng, 0.75):
        return NounPhrase(noun, words.THE, adjective=adjective)
    return noun_phrase(rng, noun, definite=True, plural=False)._replace(adjective=adjective)


def draw_telling(rng: Random) -> Telling:
    """How a puzzle is told, now and then with a time."""
    tense = "past" if chance(rng, 0.6) else "present"
    kind = weighted(rng, ((_denied, 5), (_in_spite, 3), (_in_vain, 2)))
    telling = kind(rng, tense)
    if not chance(rng, 0.12):
        return telling
    when = pick(rng, [item for item in words.TIMES[tense] if not item.middle and item is not words.EVERY_DAY])
    return telling._replace(time=when, time_first=chance(rng, 0.6))


def _denied(rng: Random, tense: str) -> Telling:
    helper = modal(rng, tense, negated=True) if chance(rng, 0.25) else None
    return Telling(words.BECAUSE, words.TOO, tense, True, chance(rng, 0.5), helper)


def _in_spite(rng: Random, tense: str) -> Telling:
    return Telling(words.ALTHOUGH, words.VERY, tense)


def _in_vain(rng: Random, tense: str) -> Telling:
    wish = next(item for item in words.MODALS if item.en == "want" and item.tense == tense)
    return Telling(words.BUT, words.TOO, tense, modal=wish)


_REASONED = tuple(verb for verb in VERBS if "it" in verb.flags)


def about_an_object(rng: Random) -> Sentence:
    """A person and a thing: "it" is the thing, and its gender is all there is to know."""
    verb = pick(rng, _REASONED)
    _, classes = verb.objects[0]
    noun = pick(rng, [noun for noun in nouns_of(*classes) if "animal" not in noun.classes])
    subject = pick(rng, words.PERSONAL) if chance(rng, 0.4) else person(rng)
    puzzle = Puzzle(subject, verb, _phrase(rng, noun))
    return tell(puzzle, draw_telling(rng), pick(rng, _reasons(noun)), noun.gender)


@cache
def _reasons(noun: Noun) -> tuple[Adjective, ...]:
    """What "it was too ..." may be about, when only one noun can be meant."""
    return tuple(item for item in ADJECTIVES if describes(item, noun) and trait_of(item, noun))
