"""Drawing clauses: somebody does something, or something is somehow."""

from __future__ import annotations

from functools import cache
from random import Random

from tools.toy_language import function_words as words
from tools.toy_language.lexicon import ADJECTIVES, BE, NOUNS, REPORTING, VERBS, nouns_of
from tools.toy_language.meaning_tree import (
    Adjective,
    Adverb,
    Clause,
    Determiner,
    Noun,
    NounPhrase,
    Participant,
    Phrase,
    Predicate,
    Pronoun,
    Verb,
)
from tools.toy_language.sampling import (
    adjectives_for,
    chance,
    counted_phrase,
    destination,
    modal,
    noun_phrase,
    pick,
    place,
    time,
    weighted,
)

_TENSES = (("past", 50), ("present", 22), ("perfect", 15), ("future", 13))
_DEFINITE = (words.THE, words.THIS, *words.POSSESSIVES)


def event(
    rng: Random,
    tense: str = "",
    subject: Participant | None = None,
    *,
    simple: bool = False,
    counted: bool = False,
) -> Clause:
    """Draws a clause in which somebody does something.

    Args:
      rng: source of randomness.
      tense: one of the tenses, or "" to draw it.
      subject: a person, or None to draw the subject.
      simple: leaves out verbs of state, negations, modals and times.
      counted: the object is a number of things, such as "three hundred and twelve books".
    """
    while True:
        clause = _event(rng, tense, subject, simple, counted)
        if not _two_readings(clause):
            return clause


def _event(rng: Random, tense: str, subject: Participant | None, simple: bool, counted: bool) -> Clause:
    verb = pick(rng, _verbs(subject is not None, simple, counted))
    state = "state" in verb.flags
    if not tense:
        tense = weighted(rng, _TENSES[:2] if state else _TENSES)
    subject = subject or participant(rng, verb.subjects)
    draw_object = _counted_object if counted else _object
    objects = tuple(draw_object(rng, classes, subject, verb.flags) for _, classes in verb.objects)
    if len(objects) == 2 and isinstance(objects[0], NounPhrase):
        objects = (_definite(objects[0]), objects[1])  # "gave a man the book" is no good English
    if any(isinstance(item, Pronoun) for item in objects) and isinstance(subject, NounPhrase):
        subject = _definite(subject)  # German would not put "ein Mann" before "ihn"
    clause = Clause(subject, verb, objects, tense)
    if not simple:
        clause = _with_negation(rng, clause)
    if state:
        return clause
    clause = _with_circumstances(rng, clause)
    return clause if simple else _with_time(rng, clause)


@cache
def _verbs(by_person: bool, simple: bool, counted: bool) -> tuple[Verb, ...]:
    fitting = (verb for verb in VERBS if "person" in verb.subjects or not by_person)
    if counted:
        fitting = (verb for verb in fitting if "many" in verb.flags)
    return tuple(verb for verb in fitting if not (simple and "state" in verb.flags))


def participant(rng: Random, classes: tuple[str, ...]) -> Participant:
    """A subject; where a person can be it, sometimes a pronoun."""
    if "person" in classes and chance(rng, 0.28):
        return pick(rng, words.PERSONAL)
    return noun_phrase(rng, pick(rng, nouns_of(*classes)))


def _object(
    rng: Random, classes: tuple[str, ...], subject: Participant, flags: tuple[str, ...]
) -> Participant:
    others = [item for item in words.PERSONAL if item.person[0] != subject.person[0] or item.person[0] == "3"]
    if "person" in classes and chance(rng, 0.2):
        return pick(rng, others)
    noun = pick(rng, nouns_of(*classes))
    return noun_phrase(rng, noun, plural=True if "plural" in flags else None, many="many" in flags)


def _counted_object(
    rng: Random, classes: tuple[str, ...], subject: Participant, flags: tuple[str, ...]
) -> NounPhrase:
    del subject, flags  # the signature is that of `_object`
    return counted_phrase(rng, pick(rng, [noun for noun in nouns_of(*classes) if noun.en_plural]))


def _definite(phrase: NounPhrase) -> NounPhrase:
    return phrase if phrase.determiner in _DEFINITE else phrase._replace(determiner=words.THE, number=0)


def _with_negation(rng: Random, clause: Clause) -> Clause:
    """Sometimes a modal, sometimes "not" - where quantities leave no doubt about what is denied."""
    negated = chance(rng, 0.25) and _is_negatable(clause)
    takes_modal = clause.tense in ("past", "present") and "state" not in clause.verb.flags
    takes_modal = takes_modal and words.NO not in _determiners(clause)
    helper = modal(rng, clause.tense, negated) if takes_modal and chance(rng, 0.18) else None
    return clause._replace(negated=negated, contracted=negated and chance(rng, 0.5), modal=helper)


def _is_negatable(clause: Clause) -> bool:
    if any(item.number for item in clause.objects if isinstance(item, NounPhrase)):
        return False
    if not {words.EVERY, words.NO, words.SOME, words.MANY}.isdisjoint(_determiners(clause)):
        return False
    return isinstance(clause.subject, Pronoun) or clause.subject.determiner in _DEFINITE


def _determiners(clause: Clause) -> list[Determiner]:
    return [item.determiner for item in (clause.subject, *clause.objects) if isinstance(item, NounPhrase)]


def _with_circumstances(rng: Random, clause: Clause) -> Clause:
    """Company, manner, beneficiary, place or destination, as the verb allows."""
    flags, phrases, manner = clause.verb.flags, [], None
    if "with" in flags and chance(rng, 0.3):
        phrases.append(_company(rng, "with", "mit", "dat"))
    elif "how" in flags and chance(rng, 0.25) and not clause.negated:
        manner = pick(rng, words.MANNERS)
    elif "pace" in flags and chance(rng, 0.25) and not clause.negated:
        manner = pick(rng, words.PACES)
    if "for" in flags and chance(rng, 0.2):
        phrases.append(_company(rng, "for", "für", "acc"))
    if clause.verb.goals:
        phrases.append(destination(rng, clause.verb.goals))
    elif "where" in flags and chance(rng, 0.3):
        phrases.append(place(rng))
    return clause._replace(manner=manner, phrases=tuple(phrases))


def _company(rng: Random, en: str, de: str, case: str) -> Phrase:
    relative = noun_phrase(rng, pick(rng, nouns_of("kin")), plural=False)
    return Phrase(en, de, case, relative._replace(determiner=pick(rng, words.POSSESSIVES)))


def _with_time(rng: Random, clause: Clause) -> Clause:
    if not chance(rng, 0.35) or clause.manner:
        return clause
    middle = not clause.modal and words.NO not in _determiners(clause) and len(clause.objects) < 2
    when = time(rng, clause.tense, middle and not clause.negated)
    if clause.negated and when is words.EVERY_DAY:
        return clause
    return clause._replace(time=when, time_first=not when.middle and chance(rng, 0.5))


def _two_readings(clause: Clause) -> bool:
    """ "They read the book" is past and present: such sentences have no one translation."""
    finite_verb_tells = clause.modal or clause.negated or clause.tense in ("perfect", "future")
    same = clause.verb.en == clause.verb.en_past
    return same and not finite_verb_tells and (clause.tense == "present" and clause.subject.person != "3s")


def unfronted(clause: Clause) -> Clause:
    """For subordinate clauses, which begin with their conjunction and nothing else."""
    return clause._replace(time_first=False)


def description(rng: Random, tense: str = "") -> Clause:
    """Something is (very, too, not) somehow, or as big as something else."""
    noun = pick(rng, _DESCRIBABLE)
    adjective = pick(rng, adjectives_for(noun))
    subject = noun_phrase(rng, noun, definite=True)._replace(adjective=None)
    tense = tense or weighted(rng, (("past", 45), ("present", 45), ("future", 10)))
    if not adjective.absolute and not subject.plural and chance(rng, 0.15):
        return is_somehow(subject, Predicate(adjective, standard=_standard(rng, noun, adjective)), tense)
    negated = chance(rng, 0.2)
    clause = is_somehow(subject, Predicate(adjective, _degree(rng, adjective, negated)), tense)
    return clause._replace(negated=negated, contracted=negated and chance(rng, 0.5))


_DESCRIBABLE = tuple(noun for noun in NOUNS if adjectives_for(noun))


def _degree(rng: Random, adjective: Adjective, negated: bool) -> Adverb | None:
    """No "too beautiful", and no "not quite", which in German says something else."""
    if adjective.absolute or chance(rng, 0.6):
        return None
    quite = () if negated else (words.QUITE,)
    too = (words.TOO,) if adjective.traits else ()
    return pick(rng, (words.VERY, *quite, *too))


def _standard(rng: Random, noun: Noun, adjective: Adjective) -> NounPhrase:
    """What the noun is compared with: another noun of its kind that can have the quality."""
    alike = [item for item in nouns_of(noun.classes[0]) if adjective in adjectives_for(item) and item != noun]
    return NounPhrase(pick(rng, alike or [noun]), words.THE)


def is_somehow(subject: Participant, predicate: Predicate, tense: str) -> Clause:
    """The subject is what the predicate says: "the street was too wide"."""
    return Clause(subject, BE, tense=tense, predicate=predicate)


PERSONAL_STATES = tuple(adjective for adjective in ADJECTIVES if "person" in adjective.traits)


def state(rng: Random, subject: Participant, tense: str, degree: Adverb | None) -> Clause:
    """A person is tired, sad, angry."""
    return is_somehow(subject, Predicate(pick(rng, PERSONAL_STATES), degree), tense)


def report(rng: Random, tense: str) -> Clause:
    """ "The woman says", to be followed by "that"."""
    while True:
        subject = pick(rng, words.PERSONAL) if chance(rng, 0.4) else person(rng)
        clause = Clause(subject, pick(rng, REPORTING), tense=tense)
        if not _two_readings(clause):
            return clause


def person(rng: Random) -> NounPhrase:
    """ "the teacher", "my two brothers"."""
    return noun_phrase(rng, pick(rng, nouns_of("person")), definite=True)
