"""German: says a meaning tree, each word tagged with the nodes it realises.

The two things that make German hard are each one table or one function here: the endings of determiners
and adjectives (`ENDINGS`, `noun_phrase`) and the place of the verb (`_clause`).
"""

from __future__ import annotations

from tools.toy_language.meaning_tree import (
    COMMA,
    Clause,
    NounPhrase,
    Participant,
    Phrase,
    Predicate,
    Sentence,
    Verb,
    Word,
    fixed_phrase,
    punctuate,
    under,
)
from tools.toy_language.numbers import german_number

# for each case the endings for masculine, feminine, neuter, plural
_STRONG = {"nom": ("er", "e", "es", "e"), "acc": ("en", "e", "es", "e"), "dat": ("em", "er", "em", "en")}
_WEAK = {"nom": ("e", "e", "e", "en"), "acc": ("en", "e", "e", "en"), "dat": ("en", "en", "en", "en")}
ENDINGS = {
    "der": {
        "nom": ("er", "ie", "as", "ie"),
        "acc": ("en", "ie", "as", "ie"),
        "dat": ("em", "er", "em", "en"),
    },
    "dies": _STRONG,
    "viel": _STRONG,
    "ein": {"nom": ("", "e", "", "e"), "acc": ("en", "e", "", "e"), "dat": ("em", "er", "em", "en")},
    "none": {"nom": ("",) * 4, "acc": ("",) * 4, "dat": ("",) * 4},
}
_CONTRACTIONS = {
    ("in", "dem"): "im",
    ("in", "das"): "ins",
    ("an", "dem"): "am",
    ("an", "das"): "ans",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
}
_AUXILIARIES = {
    "haben": {"1s": "habe", "3s": "hat", "1p": "haben", "3p": "haben"},
    "sein": {"1s": "bin", "3s": "ist", "1p": "sind", "3p": "sind"},
    "werden": {"1s": "werde", "3s": "wird", "1p": "werden", "3p": "werden"},
}


def say(sentence: Sentence) -> list[Word]:
    """The written words of a sentence."""
    if sentence.inverted:
        subordinate = [_link(sentence, 0), *_numbered(sentence, 1, "final"), COMMA]
        return punctuate(subordinate + _numbered(sentence, 0, "first"))
    words, after_subordinate = _numbered(sentence, 0, "second"), False
    for index, link in enumerate(sentence.links):
        comma = [COMMA] if link.de != "und" or after_subordinate else []
        order = "final" if link.subordinate else "second"
        words = [*words, *comma, _link(sentence, index), *_numbered(sentence, index + 1, order)]
        after_subordinate = link.subordinate
    return punctuate(words)


def _link(sentence: Sentence, index: int) -> Word:
    return Word(sentence.links[index].de, (f"link{index}",))


def _numbered(sentence: Sentence, index: int, order: str) -> list[Word]:
    return under(str(index), _clause(sentence.clauses[index], order))


def _clause(clause: Clause, order: str) -> list[Word]:
    """The finite verb stands "second", "first" (after a subordinate clause) or "final"."""
    subject = under("subject", _participant(clause.subject, "nom"))
    time = fixed_phrase(clause.time.de, clause.time.en, "time") if clause.time else []
    finite, rest = _verb(clause)
    field = _middle_field(clause, [] if clause.time_first else time)
    if order == "final":
        return subject + field + _verb_final(finite, rest, clause)
    if order == "first":
        return [finite, *subject, *field, *rest]
    if clause.time_first:
        return [*time, finite, *subject, *field, *rest]
    return [*subject, finite, *field, *rest]


def _verb_final(finite: Word, rest: list[Word], clause: Clause) -> list[Word]:
    """The finite verb after its infinitive or participle, and in one word with its prefix."""
    if _is_simple(clause):
        return [Word(clause.verb.prefix + finite.text, finite.nodes)]
    return [*rest, finite]


def _middle_field(clause: Clause, time: list[Word]) -> list[Word]:
    """Pronouns, time, noun objects, "nicht", then what belongs closest to the verb."""
    pronouns: list[Word] = []
    nouns: list[Word] = []
    for index, item in enumerate(clause.objects):
        case, _ = clause.verb.objects[index]
        negated = clause.negated and index == clause.indefinite_object
        words = under(f"object{index}", _participant(item, case, negated))
        if negated:
            words[0] = Word(words[0].text, (*words[0].nodes, "negation"))
        (nouns if isinstance(item, NounPhrase) else pronouns).extend(words)
    return [
        *pronouns,
        *time,
        *nouns,
        *([Word("nicht", ("negation",))] if clause.negated and clause.indefinite_object is None else []),
        *(under("predicate", _predicate(clause.predicate)) if clause.predicate else []),
        *(fixed_phrase(clause.manner.de, clause.manner.en, "manner") if clause.manner else []),
        *(word for i, phrase in enumerate(clause.phrases) for word in under(f"phrase{i}", _phrase(phrase))),
    ]


def _is_simple(clause: Clause) -> bool:
    return not clause.modal and clause.tense in ("past", "present")


def _verb(clause: Clause) -> tuple[Word, list[Word]]:
    """The finite verb, and what stands at the end of a main clause: prefix, infinitive or participle."""
    verb, person = clause.verb, clause.subject.person
    if _is_simple(clause):
        prefix = [Word(verb.prefix, ("verb",))] if verb.prefix else []
        return Word(finite_form(verb, clause.tense, person), ("verb",)), prefix
    infinitive = [Word(verb.prefix + verb.de, ("verb",))]
    if clause.modal:
        form = clause.modal.singular if person.endswith("s") else clause.modal.plural
        return Word(form, ("modal",)), infinitive
    if clause.tense == "future":
        return Word(_AUXILIARIES["werden"][person], ("auxiliary",)), infinitive
    return Word(_AUXILIARIES[verb.auxiliary][person], ("auxiliary",)), [Word(verb.de_participle, ("verb",))]


def finite_form(verb: Verb, tense: str, person: str) -> str:
    """Present or preterite, without the separable prefix."""
    if tense == "past":
        plural = "n" if verb.de_past.endswith("e") else "en"
        return verb.de_past + (plural if person.endswith("p") else "")
    if verb.de == "sein":
        return _AUXILIARIES["sein"][person]
    if person.endswith("p"):
        return verb.de
    if person == "3s" or verb.de == "wissen":
        return verb.de_third
    return verb.de[:-3] + "le" if verb.de.endswith("eln") else verb.de[:-1]


def _predicate(predicate: Predicate) -> list[Word]:
    adjective = Word(predicate.adjective.de, ("adjective",))
    if predicate.standard:
        standard = under("standard", noun_phrase(predicate.standard, "nom"))
        return [Word("so", ("degree",)), adjective, Word("wie", ("as",)), *standard]
    return [*([Word(predicate.degree.de, ("degree",))] if predicate.degree else []), adjective]


def _phrase(phrase: Phrase) -> list[Word]:
    """ "in einem Haus", "im Haus"."""
    preposition, *_ = fixed_phrase(phrase.de, phrase.en, "preposition")
    first, *rest = noun_phrase(phrase.noun_phrase, phrase.case)
    contracted = _CONTRACTIONS.get((preposition.text, first.text))
    if contracted:
        return [Word(contracted, preposition.nodes + first.nodes), *rest]
    return [preposition, first, *rest]


def _participant(item: Participant, case: str, negated: bool = False) -> list[Word]:
    if isinstance(item, NounPhrase):
        return noun_phrase(item, case, negated)
    return [Word({"nom": item.nom, "acc": item.acc, "dat": item.dat}[case], ("noun",))]


def noun_phrase(item: NounPhrase, case: str, negated: bool = False) -> list[Word]:
    """The adjective is strong where the determiner has no ending of its own, or is a quantity; else weak."""
    column = "mfnp".index("p" if item.plural else item.noun.gender)
    determiner, shows_gender = _determiner(item, case, column, negated)
    words = [Word(determiner, ("determiner",))] if determiner else []
    if item.adjective:
        ending = (_WEAK if shows_gender else _STRONG)[case][column]
        words.append(Word(item.adjective.stem + ending, ("adjective",)))
    return [*words, Word(_noun(item, case), ("noun", f"{item.noun.gender}.{case}"))]


def _determiner(item: NounPhrase, case: str, column: int, negated: bool) -> tuple[str, bool]:
    """The determiner, and whether its ending leaves the adjective nothing to show."""
    if item.number:
        return german_number(item.number), False
    stem, kind = ("kein", "ein") if negated else (item.determiner.de, item.determiner.kind)
    ending = ENDINGS[kind][case][column]
    return stem + ending, bool(ending) and kind != "viel"


def _noun(item: NounPhrase, case: str) -> str:
    if not item.plural:
        return item.noun.de
    return item.noun.de_plural + ("n" if case == "dat" and item.noun.de_plural[-1] not in "ns" else "")
