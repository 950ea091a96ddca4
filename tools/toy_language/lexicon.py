"""The words: nouns, verbs and adjectives of both languages, from the tables next to this file.

The classes of a noun ("animal", "road") decide which verbs and adjectives may go with it. A verb or an
adjective names classes or single nouns. A noun without a plural is a mass noun. The table has neither German
weak nouns (der Junge, der Löwe have -n in every case except one) nor English nouns without a plural form
(sheep, fish), because their sentences would have two translations.

A verb's particle "+up" moves behind a pronoun ("picks him up"), its preposition "~to" does not ("listens to
him"). "auf/wachen" is separable. The flags of verbs: `state` takes no time or place, `for` goes with "for
somebody", `many` with large numbers, `plural` with plurals only, `with` with company, `how` and `pace` with
manner, `where` with a place, `it` with a reason about its object. `reports` marks the verbs of "says that".

The column "too" of adjectives lists of which nouns "it was too ..." makes sense, which decides what "it"
means. Only animals and persons can be tired, so in "The animal didn't cross the street because it was too
tired" it is the animal. A trait of both nouns decides nothing and is not used with them. An absolute
adjective has no "very".
"""

import csv
from functools import cache
from importlib.resources import files

from tools.toy_language.meaning_tree import Adjective, Noun, Verb

SIDES = (("in front of", "vor"), ("behind", "hinter"), ("next to", "neben"))
GENDERS = {"der": "m", "die": "f", "das": "n"}


def _read(name: str) -> list[list[str]]:
    """Returns the rows of a table below its header, each as long as the header."""
    header, *rows = csv.reader(
        files(__package__).joinpath(name).read_text("utf-8").splitlines(), delimiter="\t"
    )
    return [row + [""] * (len(header) - len(row)) for row in rows]


def _noun(en, plural, de, de_plural, classes, *_):
    article, word = de.split()
    return Noun(en, plural, word, de_plural, GENDERS[article], tuple(classes.split()))


def _verb(
    en, past, participle, tail, de, third, de_past, de_participle, subjects, dative, accusative, goals, flags
):
    prefix, _, infinitive = de.rpartition("/")
    auxiliary, de_participle = de_participle.split()
    objects = tuple(
        (case, tuple(names.split())) for case, names in (("dat", dative), ("acc", accusative)) if names
    )
    return Verb(
        *(en, past, participle, tail[1:], tail.startswith("+")),
        *(infinitive, prefix, third, de_past, de_participle, {"ist": "sein", "hat": "haben"}[auxiliary]),
        *(tuple(subjects.split()), objects, tuple(goals.split()), tuple(flags.split())),
    )


def _adjective(en, de, stem, classes, traits, absolute):
    return Adjective(en, de, stem, tuple(classes.split()), tuple(traits.split()), bool(absolute))


NOUNS = tuple(_noun(*row) for row in _read("nouns.tsv"))
_PREPOSITIONS = {row[0]: row[5:] for row in _read("nouns.tsv") if row[5]}
_ALL_VERBS = tuple(_verb(*row) for row in _read("verbs.tsv"))
VERBS = tuple(verb for verb in _ALL_VERBS if "reports" not in verb.flags)
REPORTING = tuple(verb for verb in _ALL_VERBS if "reports" in verb.flags)
BE = Verb("be", "was", "been", "", False, "sein", "", "ist", "war", "gewesen", "sein", (), (), (), ())
ADJECTIVES = tuple(_adjective(*row) for row in _read("adjectives.tsv"))


@cache
def nouns_of(*classes: str) -> tuple[Noun, ...]:
    """Returns the nouns that have one of the names or classes, in the order of the table."""
    return tuple(noun for noun in NOUNS if _fits(noun, classes))


def describes(adjective: Adjective, noun: Noun) -> bool:
    """Returns whether the adjective may stand before the noun."""
    return _fits(noun, adjective.classes)


def trait_of(adjective: Adjective, noun: Noun) -> bool:
    """Returns whether "it was too ..." may be said of the noun."""
    return "all" in adjective.traits or _fits(noun, adjective.traits)


def location(noun: str) -> tuple[str, str, str]:
    """Returns the English and the German preposition and its case for being at a place."""
    en, de, *_ = _PREPOSITIONS.get(noun, ("in", "in"))
    return en, de, "dat"


def goal(noun: str) -> tuple[str, str, str]:
    """Returns the English and the German preposition and its case for going to a place."""
    *_, de, case = _PREPOSITIONS.get(noun, ("in", "acc"))
    return "to", de, case


def _fits(noun, classes):
    return not {*noun.classes, noun.en}.isdisjoint(classes)
