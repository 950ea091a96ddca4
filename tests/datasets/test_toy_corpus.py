"""The corpus of the built-in language: what each split promises, and the TFDS dataset made of it."""

import hashlib
import re
import subprocess
import sys
from collections import Counter
from itertools import islice
from random import Random

import pytest
from tfm.data.toy_translation import prepare

from tests.support.processes import LIMIT
from tfm.datasets.toy_translation import function_words as words
from tfm.datasets.toy_translation import german, grammar
from tfm.datasets.toy_translation.adjectives import ADJECTIVES, trait_of
from tfm.datasets.toy_translation.grammar import LONGEST, SIZES, generate, realise
from tfm.datasets.toy_translation.nouns import NOUNS
from tfm.datasets.toy_translation.reference import deciders
from tfm.datasets.toy_translation.sentences import sentence
from tfm.datasets.toy_translation.verbs import REPORTING, VERBS
from tfm.errors import UserError

SHA256 = (
    "1e601b649220ff933b8e8ed91654b880fdc78b53e3a683599dede058e9927106"  # of the first 1,000 training pairs
)
TRAIN = 12_000  # of the 50,000: the stream is the same all along, and the tests stay short
NOUN = {noun.en: noun for noun in NOUNS}
ADJECTIVE = {adjective.en: adjective for adjective in ADJECTIVES}


@pytest.fixture(scope="module")
def corpus():
    return {split: list(islice(generate(split), TRAIN)) for split in SIZES}


@pytest.mark.long
def test_every_word_is_aligned(corpus):
    for example in (*corpus["train"][:5000], *corpus["pronoun"], *corpus["long"]):
        pairs = [tuple(map(int, item.split("-"))) for item in example.alignment.split()]
        assert {i for i, _ in pairs} == set(range(len(example.en.split()))), example
        assert {j for _, j in pairs} == set(range(len(example.de.split()))), example


def test_each_english_word_has_one_german_word():
    assert len(NOUN) == len(NOUNS) >= 150
    assert len({verb.prefix + verb.de for verb in VERBS}) >= 80
    assert len(ADJECTIVE) == len(ADJECTIVES) >= 60
    senses = Counter((verb.en, verb.tail, verb.subjects, verb.objects) for verb in VERBS)
    assert max(senses.values()) == 1
    assert all(noun.en_plural != noun.en for noun in NOUNS)


def test_lexicon_refers_to_classes_that_exist():
    known = {name for noun in NOUNS for name in (*noun.classes, noun.en)} | {"all"}
    used = {name for item in ADJECTIVES for name in item.classes + item.traits}
    for verb in VERBS:
        used.update(verb.subjects, verb.goals, *(classes for _, classes in verb.objects))
    assert used <= known


def test_deciders_decide():
    dog, street = NOUN["dog"], NOUN["street"]
    assert ADJECTIVE["tired"] in deciders(dog, street)
    assert ADJECTIVE["wide"] in deciders(street, dog)
    assert not set(deciders(dog, street)) & set(deciders(street, dog))
    assert not any(trait_of(item, street) for item in deciders(dog, street))


@pytest.mark.long
def test_splits_share_no_sentence(corpus):
    assert SIZES == {"train": 50_000, "validation": 1_000, "test": 1_000, "pronoun": 500, "long": 500}
    assert {split: len(examples) for split, examples in corpus.items()} == SIZES | {"train": TRAIN}
    seen = [example.en for examples in corpus.values() for example in examples]
    assert len(set(seen)) == len(seen)


def test_lengths(corpus):
    def lengths(split):
        return [len(side.split()) for example in corpus[split] for side in (example.en, example.de)]

    assert max(lengths("train")) <= LONGEST < min(lengths("long"))
    assert 8 <= sum(lengths("train")) / len(lengths("train")) <= 11


def test_sentences_are_written_as_sentences(corpus):
    for example in (example for examples in corpus.values() for example in examples):
        for side in (example.en, example.de):
            assert re.fullmatch(r"[A-ZÄÖÜ][A-Za-zÄÖÜäöüß',\- ]*\.", side), side
            assert "  " not in side


@pytest.mark.long
def test_each_english_text_has_one_translation(corpus):
    known = {example.en: example.de for example in corpus["train"]}
    rng = Random(1)
    for _ in range(8_000):
        example = realise(sentence(rng))
        assert known.setdefault(example.en, example.de) == example.de


def test_verb_position_after_weil_and_adverbs(corpus):
    last = Counter()
    second = Counter()
    for example in corpus["train"]:
        for clause in re.findall(r"weil (?:er|sie|es|ich|wir) ([^,.]*)", example.de):
            last[clause.split()[-1]] += 1
        if match := re.match(r"(?:Gestern|Heute|Jetzt) (\w+) (?:er|sie|ich|wir|der|die|das) ", example.de):
            second[match[1]] += 1
    assert sum(last.values()) > 500
    assert set(last) <= {"war", "waren", "ist", "sind", "bin"}
    assert sum(second.values()) > 60
    verbs, tenses, persons = (*VERBS, *REPORTING), ("past", "present"), ("1s", "3s", "3p")
    forms = {
        german.finite_form(verb, tense, person) for verb in verbs for tense in tenses for person in persons
    }
    auxiliaries = {"hat", "habe", "haben", "ist", "bin", "sind", "war", "waren"}
    modals = {form for modal in words.MODALS for form in (modal.singular, modal.plural)}
    assert set(second) <= forms | auxiliaries | modals


IT = re.compile(r"([^,]*?),? (?:because|although|but) it (?:is|was) (?:too|very) ([\w-]+)")


def combinations(examples):
    """(nouns, adjective) of the clauses with "it", read off the English words."""
    for example in examples:
        for main, adjective in IT.findall(example.en.replace(".", "")):
            yield tuple(word for word in main.lower().split() if word in NOUN), adjective


def test_pronoun_split_has_unseen_combinations(corpus):
    train, asked = (list(combinations(corpus[split])) for split in ("train", "pronoun"))
    assert len(asked) == SIZES["pronoun"]
    assert all(len(nouns) == 2 for nouns, _ in asked)
    assert set(train).isdisjoint(asked)
    two_nouns = [(nouns, adjective) for nouns, adjective in train if len(nouns) == 2]
    assert 0.20 <= len(train) / TRAIN <= 0.30
    seen = Counter(word for nouns, adjective in two_nouns for word in (*nouns, adjective))
    assert min(seen[word] for nouns, adjective in asked for word in (*nouns, adjective)) >= 3


def test_wrong_differs_in_the_pronoun_only(corpus):
    for example in corpus["pronoun"]:
        right, wrong = example.de.split(), example.wrong.split()
        assert len(right) == len(wrong)
        different = [{a, b} for a, b in zip(right, wrong, strict=True) if a != b]
        assert len(different) == 1, example
        assert different[0] < {"er", "sie", "es"}
    assert not any(example.wrong for split in SIZES if split != "pronoun" for example in corpus[split])


def test_guessing_solves_half_the_pronoun_split(corpus):
    for first, second in zip(corpus["pronoun"][::2], corpus["pronoun"][1::2], strict=True):
        assert sum(a != b for a, b in zip(first.en.split(), second.en.split(), strict=True)) == 1
        assert sum(a != b for a, b in zip(first.de.split(), second.wrong.split(), strict=True)) == 1
        assert first.de.split()[:3] == second.de.split()[:3]


def test_generation_is_the_same_everywhere():
    """If this fails on purpose, raise the version of the dataset with it."""
    first = "\n".join("\t".join(example) for example in islice(generate("train"), 1000))
    assert hashlib.sha256(first.encode()).hexdigest() == SHA256
    assert first == "\n".join("\t".join(example) for example in islice(generate("train"), 1000))


def test_unknown_split():
    with pytest.raises(UserError, match=r"expected a split out of train, .* got 'dev'"):
        generate("dev")


def test_grammar_needs_neither_tfds_nor_jax():
    code = (
        "import sys, tfm.datasets.toy_translation.grammar as g; next(g.generate('train'));"
        "assert not {'jax', 'tensorflow', 'tensorflow_datasets'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=LIMIT)


def test_tfds_round_trip(tmp_path, monkeypatch, capfd):
    for split in SIZES:
        monkeypatch.setitem(grammar.SIZES, split, 40)
    builder = prepare(str(tmp_path))
    assert "tensorflow" not in sys.modules
    for split in SIZES:
        stored = builder.as_data_source(split=split)
        assert [{key: value.decode() for key, value in item.items()} for item in stored] == [
            example._asdict() for example in generate(split)
        ]
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.array_record*")}
    assert prepare(str(tmp_path)).info.splits["train"].num_examples == 40
    assert files == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.array_record*")}
    assert capfd.readouterr() == ("", "")


def test_prepare_into_a_file(tmp_path):
    (tmp_path / "data").write_text("")
    with pytest.raises(UserError, match=r"expected a folder .* got the file"):
        prepare(str(tmp_path / "data"))


def test_words_of_the_pronoun_split_are_found(corpus):
    """The pronoun is where the wrong translation differs, and stands for the noun of its gender."""
    genders = {noun.de: noun.gender for noun in NOUNS}
    found = list(grammar.find_pronoun_words())
    assert len(found) == SIZES["pronoun"]
    for number, (example, (english, german_words, of_subject)) in enumerate(
        zip(corpus["pronoun"], found, strict=True)
    ):
        source, right, wrong = (re.sub("[.,]", "", text).split() for text in example[:3])
        at = german_words.pronoun
        assert source[english.pronoun] == "it"
        assert [i for i, pair in enumerate(zip(right, wrong, strict=True)) if len({*pair}) == 2] == [at]
        assert of_subject == (number % 2 == 0)
        nouns = [right[german_words.subject], right[german_words.object]]
        pronouns = {"m": "er", "f": "sie", "n": "es"}
        assert [pronouns[genders[noun]] for noun in nouns[:: 1 if of_subject else -1]] == [
            right[at],
            wrong[at],
        ]
        determiner = german_words.subject_determiner
        assert determiner is None or determiner < german_words.subject
        twin = corpus["pronoun"][number ^ 1].en.split()
        assert [
            i for i, pair in enumerate(zip(example.en.split(), twin, strict=True)) if len({*pair}) == 2
        ] == [english.adjective]
