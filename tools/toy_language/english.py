"""English: says a meaning tree, each word tagged with the nodes it realises."""

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
from tools.toy_language.numbers import english_number

_BE = {
    "present": {"1s": "am", "3s": "is", "1p": "are", "3p": "are"},
    "past": {"1s": "was", "3s": "was", "1p": "were", "3p": "were"},
}
_HAVE = {"1s": "have", "3s": "has", "1p": "have", "3p": "have"}
_CONTRACTIONS = {"can": "can't", "will": "won't"}


def say(sentence: Sentence) -> list[Word]:
    """The written words of a sentence."""
    clauses = [under(str(index), _clause(clause)) for index, clause in enumerate(sentence.clauses)]
    if sentence.inverted:
        return punctuate([_link(sentence, 0), *clauses[1], COMMA, *clauses[0]])
    words = clauses[0]
    for index, link in enumerate(sentence.links):
        words = [*words, *([COMMA] if link.en_comma else []), _link(sentence, index), *clauses[index + 1]]
    return punctuate(words)


def _link(sentence: Sentence, index: int) -> Word:
    return Word(sentence.links[index].en, (f"link{index}",))


def _clause(clause: Clause) -> list[Word]:
    time = fixed_phrase(clause.time.en, clause.time.de, "time") if clause.time else []
    middle = time if clause.time and clause.time.middle else []
    final = [] if middle or clause.time_first else time
    return [
        *(time if clause.time_first else []),
        *under("subject", participant(clause.subject)),
        *_contract(_verb_group(clause, middle), clause.contracted),
        *_objects(clause),
        *(under("predicate", _predicate(clause.predicate)) if clause.predicate else []),
        *(fixed_phrase(clause.manner.en, clause.manner.de, "manner") if clause.manner else []),
        *(word for i, phrase in enumerate(clause.phrases) for word in under(f"phrase{i}", _phrase(phrase))),
        *final,
    ]


def _verb_group(clause: Clause, middle: list[Word]) -> list[Word]:
    """Finite verb, "not", adverbs of the middle, the rest of the verb."""
    finite, *rest = _auxiliaries(clause) + _main_verb(clause)
    negation = [Word("not", ("negation",))] if clause.negated else []
    if not rest and clause.verb.en != "be":
        return [*middle, finite]
    return [finite, *negation, *middle, *rest]


def _auxiliaries(clause: Clause) -> list[Word]:
    person, modal = clause.subject.person, clause.modal
    if modal and modal.en == "want":
        return [*_want(clause), Word("to", ("modal",))]
    if modal:
        return [Word(word, ("modal",)) for word in modal.en.split()]
    if clause.tense == "future":
        return [Word("will", ("auxiliary",))]
    if clause.tense == "perfect":
        return [Word(_HAVE[person], ("auxiliary",))]
    if clause.negated and clause.verb.en != "be":
        return [Word(_do(clause), ("verb",))]
    return []


def _want(clause: Clause) -> list[Word]:
    assert clause.modal is not None  # the word for it is "want"
    if clause.negated:
        return [Word(_do(clause), ("modal",)), Word("want", ("modal",))]
    if clause.modal.tense == "past":
        return [Word("wanted", ("modal",))]
    return [Word("wants" if clause.subject.person == "3s" else "want", ("modal",))]


def _do(clause: Clause) -> str:
    if clause.tense == "past":
        return "did"
    return "does" if clause.subject.person == "3s" else "do"


def _main_verb(clause: Clause) -> list[Word]:
    """The form of the verb itself, which is the finite one if there is no auxiliary."""
    verb, person = clause.verb, clause.subject.person
    if clause.tense == "perfect":
        form = verb.en_participle
    elif clause.modal or clause.tense == "future":
        form = verb.en
    elif verb.en == "be":
        form = _BE[clause.tense][person]
    elif clause.negated:
        form = verb.en
    elif clause.tense == "past":
        form = verb.en_past
    else:
        form = third_person(verb) if person == "3s" else verb.en
    return [Word(form, ("verb",))]


def third_person(verb: Verb) -> str:
    """The s-form of the present."""
    if verb.en.endswith(("s", "x", "ch", "sh", "o")):
        return verb.en + "es"
    if verb.en.endswith("y") and verb.en[-2] not in "aeiou":
        return verb.en[:-1] + "ies"
    return verb.en + "s"


def _contract(words: list[Word], contracted: bool) -> list[Word]:
    """ "did not" to "didn't" if wanted; "can not" is one word in any case."""
    place = next((i for i, word in enumerate(words) if word.text == "not"), 0)
    if not place or not (contracted or words[place - 1].text == "can"):
        return words
    finite, negation = words[place - 1 : place + 1]
    text = _CONTRACTIONS.get(finite.text, finite.text + "n't") if contracted else "cannot"
    return [*words[: place - 1], Word(text, finite.nodes + negation.nodes), *words[place + 1 :]]


def _objects(clause: Clause) -> list[Word]:
    """The objects with the verb's tail, which a pronoun separates from its verb: "picks him up"."""
    verb = clause.verb
    tail = [Word(verb.tail, ("verb",))] if verb.tail else []
    objects = []
    for index, item in enumerate(clause.objects):
        any_object = clause.negated and index == clause.indefinite_object
        words = (
            noun_phrase(item, any_object)
            if isinstance(item, NounPhrase)
            else [Word(item.en_object, ("noun",))]
        )
        objects += under(f"object{index}", words)
    pronoun_last = bool(clause.objects) and not isinstance(clause.objects[-1], NounPhrase)
    return [*objects, *tail] if verb.tail_moves and pronoun_last else [*tail, *objects]


def _predicate(predicate: Predicate) -> list[Word]:
    adjective = Word(predicate.adjective.en, ("adjective",))
    if predicate.standard:
        standard = under("standard", noun_phrase(predicate.standard))
        return [Word("as", ("degree",)), adjective, Word("as", ("as",)), *standard]
    return [*([Word(predicate.degree.en, ("degree",))] if predicate.degree else []), adjective]


def _phrase(phrase: Phrase) -> list[Word]:
    return fixed_phrase(phrase.en, phrase.de, "preposition") + noun_phrase(phrase.noun_phrase)


def participant(item: Participant) -> list[Word]:
    """A subject: pronoun or noun phrase."""
    return noun_phrase(item) if isinstance(item, NounPhrase) else [Word(item.en, ("noun",))]


def noun_phrase(item: NounPhrase, any_object: bool = False) -> list[Word]:
    """ "the old dog"; a bare noun as the object of a negated verb gets "any"."""
    noun = item.noun.en_plural if item.plural else item.noun.en
    words = [*([item.adjective.en] if item.adjective else []), noun]
    tags = ["adjective", "noun"] if item.adjective else ["noun"]
    described = [Word(text, (tag,)) for text, tag in zip(words, tags, strict=True)]
    return [Word(text, ("determiner",)) for text in _determiner(item, words[0], any_object)] + described


def _determiner(item: NounPhrase, following: str, any_object: bool) -> list[str]:
    if item.number:
        return english_number(item.number).split()
    text = item.determiner.en_plural if item.plural else item.determiner.en
    if text == "a":
        return ["an" if following[0] in "aeiou" or following == "honest" else "a"]
    if not text and any_object:
        return ["any"]
    return [text] if text else []
