"""Tests of the grammar of the built-in language against handwritten tables and the shipped files."""

import lzma
import re
import subprocess
import sys
from collections import Counter
from importlib.resources import files
from itertools import islice, pairwise
from random import Random

import pytest

from tests.support.paths import ROOT
from tests.support.processes import LIMIT
from tfm.datasets import toy_language
from tfm.systems.parsing.trees import list_leaves, read_trees
from tools.toy_language import english, german, trees
from tools.toy_language import function_words as words
from tools.toy_language.__main__ import list_files
from tools.toy_language.corpus import realise
from tools.toy_language.lexicon import ADJECTIVES, BE, NOUNS, REPORTING, VERBS, trait_of
from tools.toy_language.meaning_tree import (
    Adverb,
    Clause,
    Determiner,
    NounPhrase,
    Phrase,
    Predicate,
    Sentence,
)
from tools.toy_language.numbers import english_number, german_number
from tools.toy_language.pronoun_puzzles import deciders, famous_twins, tell
from tools.toy_language.sentences import sentence

MAX_COMPARED_LINES = 1_500  # per file; test_toy_language.py has the hashes of the complete files
NOUN = {noun.en: noun for noun in NOUNS}
ADJECTIVE = {adjective.en: adjective for adjective in ADJECTIVES}
VERB = {verb.prefix + verb.de: verb for verb in (*REPORTING, *VERBS)}


def phrase(determiner, adjective, noun, plural=False, number=0):
    return NounPhrase(NOUN[noun], determiner, plural, ADJECTIVE.get(adjective), number)


def pair(*clauses, links=(), inverted=False):
    example = realise(Sentence(clauses, links, inverted))
    return example.en, example.de


def text(tagged):
    return " ".join(word.text for word in tagged)


# determiner | adjective | noun | s for singular or p for plural | nominative | accusative | dative
ENDINGS = """
    the | small | dog | s | der kleine Hund | den kleinen Hund | dem kleinen Hund
    the | dark | kitchen | s | die dunkle Küche | die dunkle Küche | der dunklen Küche
    the | high | shelf | s | das hohe Regal | das hohe Regal | dem hohen Regal
    the | tired | doctor | p | die müden Ärzte | die müden Ärzte | den müden Ärzten
    a | old | table | s | ein alter Tisch | einen alten Tisch | einem alten Tisch
    a | expensive | clock | s | eine teure Uhr | eine teure Uhr | einer teuren Uhr
    a | red | car | s | ein rotes Auto | ein rotes Auto | einem roten Auto
    no | new | book | p | keine neuen Bücher | keine neuen Bücher | keinen neuen Büchern
    our | poor | father | s | unser armer Vater | unseren armen Vater | unserem armen Vater
    my | - | daughter | p | meine Töchter | meine Töchter | meinen Töchtern
    their | beautiful | garden | s | ihr schöner Garten | ihren schönen Garten | ihrem schönen Garten
    this | sour | apple | s | dieser saure Apfel | diesen sauren Apfel | diesem sauren Apfel
    every | clever | girl | s | jedes kluge Mädchen | jedes kluge Mädchen | jedem klugen Mädchen
    some | old | woman | p | einige alte Frauen | einige alte Frauen | einigen alten Frauen
    many | - | cat | p | viele Katzen | viele Katzen | vielen Katzen
    - | cold | water | s | kaltes Wasser | kaltes Wasser | kaltem Wasser
    - | fresh | milk | s | frische Milch | frische Milch | frischer Milch
    - | hot | coffee | s | heißer Kaffee | heißen Kaffee | heißem Kaffee
    12 | young | child | p | zwölf junge Kinder | zwölf junge Kinder | zwölf jungen Kindern
    the | - | car | p | die Autos | die Autos | den Autos
"""
DETERMINERS = {
    item.en or item.en_plural or "-": item for item in vars(words).values() if isinstance(item, Determiner)
}
DETERMINERS |= {item.en: item for item in words.POSSESSIVES}


@pytest.mark.parametrize("row", ENDINGS.strip().splitlines())
def test_endings_of_noun_phrases_in_three_cases(row):
    determiner, adjective, noun, number, *cases = (part.strip() for part in row.split("|"))
    count = int(determiner) if determiner.isdigit() else 0
    item = phrase(DETERMINERS["-" if count else determiner], adjective, noun, number == "p", count)
    assert [text(german.noun_phrase(item, case)) for case in ("nom", "acc", "dat")] == cases


@pytest.mark.parametrize(
    ("number", "en", "de"),
    [
        (1, "one", "eins"),
        (12, "twelve", "zwölf"),
        (16, "sixteen", "sechzehn"),
        (21, "twenty-one", "einundzwanzig"),
        (30, "thirty", "dreißig"),
        (77, "seventy-seven", "siebenundsiebzig"),
        (100, "one hundred", "einhundert"),
        (101, "one hundred and one", "einhunderteins"),
        (317, "three hundred and seventeen", "dreihundertsiebzehn"),
        (1000, "one thousand", "eintausend"),
        (1999, "one thousand nine hundred and ninety-nine", "eintausendneunhundertneunundneunzig"),
        (2354, "two thousand three hundred and fifty-four", "zweitausenddreihundertvierundfünfzig"),
        (5006, "five thousand and six", "fünftausendsechs"),
        (9999, "nine thousand nine hundred and ninety-nine", "neuntausendneunhundertneunundneunzig"),
    ],
)
def test_numbers_in_words(number, en, de):
    assert (english_number(number), german_number(number)) == (en, de)


def test_numbers_in_words_are_unique_and_bounded():
    everything = range(1, 10_000)
    for say in (english_number, german_number):
        assert len({say(number) for number in everything}) == 9_999
    for outside in (0, 10_000):
        with pytest.raises(ValueError, match="from 1 to 9999"):
            german_number(outside)


YESTERDAY, OFTEN = Adverb("yesterday", "gestern"), Adverb("often", "oft", middle=True)
WOMAN, MAN = phrase(words.THE, "", "woman"), phrase(words.THE, "", "man")
APPLES = phrase(words.BARE, "", "apple", plural=True)
BUYS = Clause(WOMAN, VERB["kaufen"], (phrase(words.A, "", "car"),), "present")
PICKS_UP = Clause(MAN, VERB["abholen"], (words.HE,), "present")
SLEEPS = Clause(WOMAN, VERB["schlafen"], (), "past")
IN_KITCHEN = Phrase("in", "in", "dat", phrase(words.THE, "", "kitchen"))
TO_STATION = Phrase("to", "zu", "dat", phrase(words.THE, "", "station"))


BOOKS = phrase(words.BARE, "", "book", plural=True, number=861)
SMALL_CHILD = phrase(words.THE, "small", "child")
FAMOUS = [
    (
        "The animal didn't cross the street because it was too tired.",
        "Das Tier überquerte die Straße nicht, weil es zu müde war.",
    ),
    (
        "The animal didn't cross the street because it was too wide.",
        "Das Tier überquerte die Straße nicht, weil sie zu breit war.",
    ),
]

SENTENCES = [
    (
        pair(BUYS._replace(tense="past", time=YESTERDAY, time_first=True)),
        "Yesterday the woman bought a car.",
        "Gestern kaufte die Frau ein Auto.",
    ),
    (
        pair(BUYS._replace(objects=(APPLES,), negated=True, contracted=True, tense="past")),
        "The woman didn't buy any apples.",
        "Die Frau kaufte keine Äpfel.",
    ),
    (
        pair(BUYS._replace(subject=words.I, modal=words.MODALS[1], negated=True, contracted=True)),
        "I don't want to buy a car.",
        "Ich will kein Auto kaufen.",
    ),
    (
        pair(PICKS_UP._replace(tense="perfect", objects=(WOMAN,))),
        "The man has picked up the woman.",
        "Der Mann hat die Frau abgeholt.",
    ),
    (
        pair(SLEEPS, PICKS_UP._replace(tense="past"), links=(words.WHILE,), inverted=True),
        "While the man picked him up, the woman slept.",
        "Während der Mann ihn abholte, schlief die Frau.",
    ),
    (
        pair(
            Clause(words.WE, VERB["wissen"], tense="present"),
            Clause(words.THEY, VERB["gehen"], tense="perfect", phrases=(TO_STATION,)),
            links=(words.THAT,),
        ),
        "We know that they have gone to the station.",
        "Wir wissen, dass sie zum Bahnhof gegangen sind.",
    ),
    (
        pair(Clause(words.SHE, VERB["zuhören"], (words.I,), "past", phrases=(IN_KITCHEN,))),
        "She listened to me in the kitchen.",
        "Sie hörte mir in der Küche zu.",
    ),
    (
        pair(Clause(MAN, VERB["geben"], (WOMAN, phrase(words.A, "honest", "dog")), "past")),
        "The man gave the woman an honest dog.",
        "Der Mann gab der Frau einen ehrlichen Hund.",
    ),
    (
        pair(Clause(MAN, BE, tense="present", predicate=Predicate(ADJECTIVE["old"], standard=WOMAN))),
        "The man is as old as the woman.",
        "Der Mann ist so alt wie die Frau.",
    ),
    (
        pair(
            Clause(phrase(words.THE, "old", "dog", plural=True), VERB["vertrauen"], (SMALL_CHILD,), "present")
        ),
        "The old dogs trust the small child.",
        "Die alten Hunde vertrauen dem kleinen Kind.",
    ),
    (
        pair(
            Clause(
                WOMAN,
                VERB["kaufen"],
                (APPLES,),
                negated=True,
                contracted=True,
                time=YESTERDAY,
                time_first=True,
            )
        ),
        "Yesterday the woman didn't buy any apples.",
        "Gestern kaufte die Frau keine Äpfel.",
    ),
    (
        pair(Clause(phrase(words.THE, "", "guest"), VERB["besitzen"], (BOOKS,), "present")),
        "The guest owns eight hundred and sixty-one books.",
        "Der Gast besitzt achthunderteinundsechzig Bücher.",
    ),
    (
        pair(
            Clause(phrase(words.THE, "", "teacher"), VERB["sagen"], tense="present"),
            Clause(phrase(words.THE, "", "girl"), VERB["abholen"], (words.HE,), "perfect"),
            links=(words.THAT,),
        ),
        "The teacher says that the girl has picked him up.",
        "Der Lehrer sagt, dass das Mädchen ihn abgeholt hat.",
    ),
]


@pytest.mark.parametrize(("said", "en", "de"), SENTENCES)
def test_sentences_equal_translations_by_hand(said, en, de):
    assert said == (en, de)


def test_famous_twins_are_the_famous_sentences():
    twins = famous_twins()
    told = [realise(tell(puzzle, *rest, puzzle.nouns[about].gender)) for puzzle, *rest, about in twins]
    assert [(example.en, example.de) for example in told] == FAMOUS


def test_examples_of_the_documentation_are_generated_sentences():
    lines = [line.strip() for line in toy_language.__doc__.splitlines()]
    shown = [(en, de.split("  ")[0]) for en, de in pairwise(lines) if re.search(r"\.  +\(", de)]
    assert len(shown) == 6
    assert set(shown) <= {(en, de) for _, en, de in SENTENCES} | set(FAMOUS)


def test_alignment_equals_alignment_by_hand():
    clause = Clause(MAN, VERB["abholen"], (WOMAN,), negated=True, contracted=True)
    example = realise(Sentence((clause,)))
    assert example.en == "The man didn't pick up the woman."
    assert example.de == "Der Mann holte die Frau nicht ab."
    assert example.alignment == "0-0 1-1 2-2 2-5 2-6 3-2 3-6 4-2 4-6 5-3 6-4"


@pytest.mark.long
def test_grammar_generates_the_files_of_the_package():
    """After an intended change of the grammar, write the files again and raise their version."""
    for name, lines in list_files():
        shipped = lzma.decompress(files(toy_language).joinpath(name).read_bytes()).decode("utf-8")
        first_lines = "".join(f"{line}\n" for line in islice(lines, MAX_COMPARED_LINES))
        assert first_lines
        assert shipped.startswith(first_lines), name


def test_every_english_word_has_a_single_german_word():
    senses = Counter((verb.en, verb.tail, verb.subjects, verb.objects) for verb in VERBS)
    for words_of_a_kind in (NOUN, ADJECTIVE, senses):
        assert len(words_of_a_kind) >= 60
    assert (len(NOUN), len(ADJECTIVE), max(senses.values())) == (len(NOUNS), len(ADJECTIVES), 1)
    assert all(noun.en_plural != noun.en for noun in NOUNS)


@pytest.mark.long
def test_every_english_sentence_has_a_single_translation():
    known, rng = {}, Random(1)
    for _ in range(2_000):
        example = realise(sentence(rng))
        assert known.setdefault(example.en, example.de) == example.de


def test_lexicon_refers_to_classes_that_exist():
    known = {name for noun in NOUNS for name in (*noun.classes, noun.en)} | {"all"}
    used = {name for item in ADJECTIVES for name in item.classes + item.traits}
    for verb in VERBS:
        used.update(verb.subjects, verb.goals, *(classes for _, classes in verb.objects))
    assert used <= known


def test_deciders_fit_only_the_first_noun():
    dog, street = NOUN["dog"], NOUN["street"]
    assert ADJECTIVE["tired"] in deciders(dog, street)
    assert ADJECTIVE["wide"] in deciders(street, dog)
    assert not set(deciders(dog, street)) & set(deciders(street, dog))
    assert not any(trait_of(item, street) for item in deciders(dog, street))


def test_grammar_imports_neither_tfds_nor_jax():
    code = (
        "import sys, tools.toy_language.corpus as corpus; next(corpus.generate('train'));"
        "assert not {'jax', 'tensorflow', 'tensorflow_datasets'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=LIMIT, cwd=ROOT)


def test_words_of_a_tree_equal_the_words_of_the_sentence():
    rng = Random(3)
    for _ in range(300):
        meaning = sentence(rng)
        (tree,) = read_trees([trees.format_parse(meaning)], "tree")
        spoken = " ".join(word.text for word in english.say(meaning))
        text = " ".join(leaf.word for leaf in list_leaves(tree))
        assert re.sub(r" (n't|[,.])|(can) (?=not)", r"\1\2", text) == spoken


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (861, "(QP (CD eight) (CD hundred) (CC and) (CD sixty-one))"),
        (100, "(QP (CD one) (CD hundred))"),
        (3, "(CD three)"),
    ],
)
def test_only_numbers_of_several_words_form_a_phrase(number, expected):
    clause = Clause(words.HE, VERB["besitzen"], (BOOKS._replace(number=number),), "present")
    tree = f"(TOP (S (NP (PRP He)) (VP (VBZ owns) (NP {expected} (NNS books))) (. .)))"
    assert trees.format_parse(Sentence((clause,))) == tree
