"""Drawing whole sentences out of clauses."""

from __future__ import annotations

from random import Random

from tools.toy_language import function_words as words
from tools.toy_language.clauses import description, event, person, report, state, unfronted
from tools.toy_language.meaning_tree import Link, NounPhrase, Participant, Pronoun, Sentence
from tools.toy_language.pronoun_puzzles import about_an_object, drawn_puzzle
from tools.toy_language.sampling import chance, pick, weighted


def sentence(rng: Random) -> Sentence:
    """A sentence as in the training split."""
    return weighted(rng, _KINDS)(rng)


def long_sentence(rng: Random) -> Sentence:
    """Two to four sentences in one."""
    parts = [pick(rng, _CHAINABLE)(rng) for _ in range(2 + int(rng.random() * 3))]
    return _chain(rng, [part for part in parts if not part.inverted] or parts[:1])


def _event(rng: Random) -> Sentence:
    return Sentence((event(rng),))


def _counted(rng: Random) -> Sentence:
    """ "The guest owns eight hundred and sixty-one books"."""
    return Sentence((event(rng, counted=True),))


def _description(rng: Random) -> Sentence:
    return Sentence((description(rng),))


def _because(rng: Random) -> Sentence:
    """ "The man slept because he was tired", or "Because the man was tired, he slept"."""
    tense = _tense(rng)
    named = pick(rng, words.PERSONAL) if chance(rng, 0.3) else _person_with_pronoun(rng)
    pronoun = _pronoun_for(named)
    inverted = chance(rng, 0.3)
    doer, bearer = (pronoun, named) if inverted else (named, pronoun)
    action = event(rng, tense, doer)
    link = words.BECAUSE if chance(rng, 0.7) else words.ALTHOUGH
    degree = words.VERY if chance(rng, 0.4) else None
    if link is words.BECAUSE and action.negated:
        degree = words.TOO
    clauses = (unfronted(action) if inverted else action, state(rng, bearer, tense, degree))
    return Sentence(clauses, (link,), inverted)


def _person_with_pronoun(rng: Random) -> NounPhrase:
    """Not das Mädchen or das Kind, of whom German speakers say "es" or "sie"."""
    while True:
        phrase = person(rng)._replace(adjective=None)
        if phrase.plural or phrase.noun.gender != "n":
            return phrase


def _pronoun_for(named: Participant) -> Pronoun:
    if isinstance(named, Pronoun):
        return named
    if named.plural:
        return words.THEY
    return words.HE if named.noun.gender == "m" else words.SHE


def _that(rng: Random) -> Sentence:
    tense = _tense(rng)
    content = "" if tense == "present" else "past"
    clause = description(rng, content) if chance(rng, 0.25) else unfronted(event(rng, content))
    return Sentence((report(rng, tense), clause), (words.THAT,))


def _meanwhile(rng: Random) -> Sentence:
    """ "The man read while the woman slept"."""
    tense = _tense(rng)
    clauses = (event(rng, tense, simple=True), event(rng, tense, simple=True))
    return Sentence(clauses, (pick(rng, (words.WHILE, words.BEFORE)),), chance(rng, 0.35))


def _pair(rng: Random) -> Sentence:
    return _chain(rng, [weighted(rng, ((_event, 3), (_description, 1)))(rng) for _ in range(2)])


def _chain(rng: Random, parts: list[Sentence]) -> Sentence:
    clauses, links = parts[0].clauses, parts[0].links
    for part in parts[1:]:
        clauses, links = clauses + part.clauses, (*links, _coordination(rng), *part.links)
    return Sentence(clauses, links)


def _coordination(rng: Random) -> Link:
    return words.AND if chance(rng, 0.6) else words.BUT


def _tense(rng: Random) -> str:
    return "past" if chance(rng, 0.65) else "present"


_KINDS = (
    (_event, 34),
    (_counted, 2.5),
    (_description, 8),
    (drawn_puzzle, 21),
    (about_an_object, 6),
    (_because, 9),
    (_that, 9),
    (_meanwhile, 4),
    (_pair, 5),
    (long_sentence, 4),
)
_CHAINABLE = (_event, _event, _description, _because, _that, _meanwhile, drawn_puzzle, about_an_object)
