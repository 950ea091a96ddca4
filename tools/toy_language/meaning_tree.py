"""The meaning tree: what a sentence says, before either language says it.

A sentence is drawn once, as a tree of the types below, and spoken twice, by `english` and by `german`.
Each spoken word carries the names of the tree nodes it realises ("0.subject.noun", "0.verb"); two words
are aligned when they share a node. So translation and word alignment are correct by construction.
"""

from __future__ import annotations

from typing import NamedTuple


class Noun(NamedTuple):
    """`classes` say what the noun can be ("animal", "road"). A mass noun ("milk") has empty plurals."""

    en: str
    en_plural: str
    de: str
    de_plural: str
    gender: str  # "m", "f" or "n"
    classes: tuple[str, ...]


class Verb(NamedTuple):
    """`objects` are (German case, classes allowed) pairs, dative first; `flags` say what may accompany it."""

    en: str
    en_past: str
    en_participle: str
    tail: str  # "up" of "wake up", "to" of "listen to", or ""
    tail_moves: bool  # "picks him up", but "listens to him"
    de: str  # infinitive without its separable prefix
    prefix: str
    de_third: str
    de_past: str
    de_participle: str
    auxiliary: str  # "haben" or "sein"
    subjects: tuple[str, ...]
    objects: tuple[tuple[str, tuple[str, ...]], ...]
    goals: tuple[str, ...]  # classes of places a verb of motion leads to
    flags: tuple[str, ...]


class Adjective(NamedTuple):
    """`classes`: nouns it may stand before. `traits`: what "it was too ..." can be about. See `frames`."""

    en: str
    de: str
    stem: str  # "teur" of "teuer": what the endings are added to
    classes: tuple[str, ...]
    traits: tuple[str, ...]
    absolute: bool


class Determiner(NamedTuple):
    """What opens a noun phrase: "the", "my", "every"; bare nouns have one without words."""

    en: str  # "" where this number does not exist, or (bare nouns) where nothing is said
    en_plural: str
    de: str  # the stem that endings are added to
    kind: str  # "der", "dies", "ein" or "none": see german.ENDINGS


class Pronoun(NamedTuple):
    """ "she", with the forms that English and German need."""

    en: str
    en_object: str
    nom: str
    acc: str
    dat: str
    person: str  # "1s", "3s", "1p" or "3p"


class NounPhrase(NamedTuple):
    """ "my two brown dogs"."""

    noun: Noun
    determiner: Determiner
    plural: bool = False
    adjective: Adjective | None = None
    number: int = 0  # said instead of the determiner when not 0

    @property
    def person(self) -> str:
        return "3p" if self.plural else "3s"


Participant = NounPhrase | Pronoun


class Adverb(NamedTuple):
    """A time, a manner or a degree, said in one piece: "every day", "quickly", "too"."""

    en: str
    de: str
    middle: bool = False  # English says it before the verb: "often sleeps"


class Phrase(NamedTuple):
    """A preposition and its noun phrase."""

    en: str
    de: str
    case: str
    noun_phrase: NounPhrase


class Modal(NamedTuple):
    """ "can", "want to", in one tense, with its two German forms."""

    en: str  # "want" takes "to" and "do"
    singular: str
    plural: str
    tense: str
    negatable: bool = True


class Predicate(NamedTuple):
    """ "too tired", or, with a standard, "as big as the cat"."""

    adjective: Adjective
    degree: Adverb | None = None
    standard: NounPhrase | None = None


class Clause(NamedTuple):
    """Who does what to whom, when, how and where."""

    subject: Participant
    verb: Verb
    objects: tuple[Participant, ...] = ()  # in the order of verb.objects
    tense: str = "past"  # "past", "present", "perfect" or "future"
    modal: Modal | None = None
    negated: bool = False
    contracted: bool = False  # "didn't" for "did not"
    time: Adverb | None = None
    time_first: bool = False
    predicate: Predicate | None = None
    manner: Adverb | None = None
    phrases: tuple[Phrase, ...] = ()

    @property
    def indefinite_object(self) -> int | None:
        """Index of the object that takes "kein" when the clause is negated; without one it is "nicht"."""
        for index, item in enumerate(self.objects):
            if isinstance(item, NounPhrase) and not item.number and item.determiner.de in ("ein", ""):
                return index
        return None


class Link(NamedTuple):
    """A conjunction. A subordinating one sends the German verb to the end."""

    en: str
    de: str
    subordinate: bool
    en_comma: bool = False


class Sentence(NamedTuple):
    """`links[i]` stands before `clauses[i + 1]`; `inverted` puts link and second clause in front (of two)."""

    clauses: tuple[Clause, ...]
    links: tuple[Link, ...] = ()
    inverted: bool = False


class Word(NamedTuple):
    """A word as spoken, and the tree nodes that it realises."""

    text: str
    nodes: tuple[str, ...]


COMMA = Word(",", ())


def under(name: str, words: list[Word]) -> list[Word]:
    """The same words as part of the node `name`."""
    prefix = name + "."
    return [Word(text, tuple([prefix + node for node in nodes])) for text, nodes in words]


def fixed_phrase(text: str, counterpart: str, node: str) -> list[Word]:
    """Words of an expression without structure: aligned word by word if as long as its counterpart."""
    words = text.split()
    parallel = len(words) == len(counterpart.split())
    return [Word(word, (f"{node}.{index if parallel else 0}",)) for index, word in enumerate(words)]


def punctuate(words: list[Word]) -> list[Word]:
    """Written words: commas hang on the word before, the first letter is a capital, a full stop ends."""
    written: list[Word] = []
    for word in words:
        if word is COMMA:
            written[-1] = written[-1]._replace(text=written[-1].text + ",")
        else:
            written.append(word)
    first, last = written[0], written[-1]
    written[0] = first._replace(text=first.text[0].upper() + first.text[1:])
    written[-1] = last._replace(text=written[-1].text + ".")
    return written


def align(source: list[Word], target: list[Word]) -> str:
    """Pharaoh format: "i-j" for every source word i and target word j that share a node."""
    places: dict[str, list[int]] = {}
    for j, word in enumerate(target):
        for node in word.nodes:
            places.setdefault(node, []).append(j)
    pairs = []
    for i, word in enumerate(source):
        targets = {j for node in word.nodes for j in places.get(node, ())}
        pairs += [f"{i}-{j}" for j in sorted(targets)]
    return " ".join(pairs)
