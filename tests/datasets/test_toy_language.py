"""Tests of the shipped files of the built-in language: the properties of each split."""

import hashlib
import itertools
import re

import pytest

from tfm.datasets import toy_language
from tfm.datasets.toy_language import (
    NOUN_TAGS,
    SIZES,
    TAGGED_SIZES,
    TREE_SIZES,
    read_examples,
    read_pronoun_words,
)
from tfm.errors import UserError
from tfm.systems.parsing.trees import clean_tree, list_leaves, read_trees
from tools.toy_language.numbers import english_number

# The first digits of the hash of all pairs. After a change of the pairs, raise toy_language.VERSION.
SHA256 = "565e9e0e460927d1"
TREES_SHA256 = "616514473402dbb4"  # the first digits of the hash of all trees
LONGEST = 20  # maximum number of words of a training sentence


def lengths(split):
    return [len(side.split()) for example in read_examples(split) for side in (example.en, example.de)]


def differences(first, second):
    """Returns the indices of the words that differ."""
    pairs = zip(first.split(), second.split(), strict=True)
    return [number for number, pair in enumerate(pairs) if len({*pair}) == 2]


@pytest.mark.long
def test_files_are_those_of_the_version():
    lines = ["\t".join(example) for split in SIZES for example in read_examples(split)]
    trees = [tree for split in TREE_SIZES for tree in toy_language.read_trees(split)]
    for content, expected in ((lines, SHA256), (trees, TREES_SHA256)):
        text = "".join(f"{line}\n" for line in content)
        assert hashlib.sha256(text.encode()).hexdigest().startswith(expected)
    assert {split: len(read_examples(split)) for split in SIZES} == SIZES
    assert {split: len(toy_language.read_trees(split)) for split in TREE_SIZES} == TREE_SIZES


def test_splits_share_no_sentence():
    sentences = [example.en for split in SIZES for example in read_examples(split)]
    assert len(set(sentences)) == len(sentences)
    trees = list(itertools.chain.from_iterable(map(toy_language.read_trees, TREE_SIZES)))
    assert len(set(trees)) == len(trees)


def test_sentences_of_the_long_split_are_longer_than_training_sentences():
    training = lengths("train")
    assert max(training) <= LONGEST < min(lengths("long"))
    assert 8 <= sum(training) / len(training) <= 11


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_three_to_six_percent_of_the_sentences_contain_a_number(split):
    words = {word for number in range(2, 10_000, 37) for word in re.split(r"\W", english_number(number))} - {
        "and"
    }
    words |= {english_number(number) for number in range(2, 20)}
    sentences = [set(re.findall(r"\w+", example.en.lower())) for example in read_examples(split)]
    assert 0.03 <= sum(not words.isdisjoint(sentence) for sentence in sentences) / len(sentences) <= 0.06
    large = sum(not {"hundred", "thousand"}.isdisjoint(sentence) for sentence in sentences)
    assert large / len(sentences) >= 0.01


def test_every_word_is_aligned():
    for split in ("test", "pronoun", "long"):
        for example in read_examples(split):
            pairs = [tuple(map(int, link.split("-"))) for link in example.alignment.split()]
            for side, text in enumerate((example.en, example.de)):
                assert {pair[side] for pair in pairs} == set(range(len(text.split())))


@pytest.mark.long
def test_sentences_begin_with_a_capital_and_end_with_a_period():
    for split in SIZES:
        for example in read_examples(split):
            for side in example[:2]:
                assert re.fullmatch(r"[A-ZÄÖÜ]([A-Za-zÄÖÜäöüß',\-]| (?! ))*\.", side)


def test_wrong_translations_have_the_pronoun_of_the_other_noun():
    """Therefore, a model that ignores the adjective is correct in half of the cases."""
    examples, words = read_examples("pronoun"), read_pronoun_words()
    for number, (example, (english, german, is_subject)) in enumerate(zip(examples, words, strict=True)):
        twin = examples[number ^ 1]
        assert re.sub(r"\W", "", example.en.split()[english.pronoun]) == "it"
        assert differences(example.de, example.wrong) == [german.pronoun]
        assert differences(example.en, twin.en) == [english.adjective]
        assert differences(example.de, twin.wrong) == [german.adjective]
        assert is_subject == (number % 2 == 0)
        assert {re.sub(r"\W", "", text.split()[german.pronoun]) for text in (example.de, example.wrong)} < {
            *("er", "sie", "es")
        }
        for places in (english, german):
            assert places.subject < places.object < places.pronoun < places.adjective
            assert (places.subject_determiner or 0) <= places.subject
    assert not any(example.wrong for split in SIZES if split != "pronoun" for example in read_examples(split))


@pytest.mark.long
def test_pronoun_split_has_new_combinations_of_known_words():
    english = [
        (example.en, places)
        for example, (places, *_) in zip(read_examples("pronoun"), read_pronoun_words(), strict=True)
    ]
    training = [re.findall(r"[\w'-]+", example.en.lower()) for example in read_examples("train")]
    training_words = [set(words) for words in training if "it" in words]
    for text, places in english[:100]:
        words = re.findall(r"[\w'-]+", text.lower())
        decisive = {words[places.subject], words[places.object], words[places.adjective]}
        assert sum(decisive <= words for words in training_words) == 0
        assert all(sum(word in words for words in training_words) >= 3 for word in decisive)


def test_trees_are_clean_and_have_the_labels_of_the_penn_treebank():
    labels = {"TOP", "S", "SBAR", "NP", "VP", "PP", "ADJP", "ADVP", "PRT", "QP"}
    assert set(re.findall(r"\((\w+)(?= \()", "".join(toy_language.read_trees("train")))) == labels
    for tree in read_trees(toy_language.read_trees("test"), "test"):
        assert clean_tree(tree) == tree
        assert tree.children[0].children[-1] == (".", ".")
        assert len(list_leaves(tree)) <= 24


@pytest.mark.parametrize(
    ("read", "split"), [(read_examples, "dev"), (toy_language.read_trees, "long")], ids=["pairs", "trees"]
)
def test_unknown_split_is_an_error(read, split):
    with pytest.raises(UserError, match=rf"train, validation, test.*'{split}'"):
        read(split)


def test_pronoun_split_begins_with_the_famous_sentences():
    first, second = read_examples("pronoun")[:2]
    assert first[:2] == (
        "The animal didn't cross the street because it was too tired.",
        "Das Tier überquerte die Straße nicht, weil es zu müde war.",
    )
    assert second[1] == "Das Tier überquerte die Straße nicht, weil sie zu breit war."


@pytest.mark.parametrize("split", TAGGED_SIZES)
def test_noun_tags_agree_with_the_article_before_the_noun(split):
    articles = {"der": {"m.nom", "f.dat"}, "das": {"n.nom", "n.acc"}, "dem": {"m.dat", "n.dat"}}
    articles |= {
        "ein": {"m.nom", "n.nom", "n.acc"},
        "einen": {"m.acc"},
        "einer": {"f.dat"},
        "im": {"m.dat", "n.dat"},
    }
    found = set()
    lines = toy_language.read_noun_tags(split)
    assert len(lines) == TAGGED_SIZES[split]
    for line, example in zip(lines, read_examples(split), strict=False):
        tags, words = line.split(), example.de.split()
        assert len(tags) == len(words)
        assert set(tags) <= {"-", *NOUN_TAGS}
        for before, word, tag in zip(words, words[1:], tags[1:], strict=False):
            allowed = articles.get(before.lower(), NOUN_TAGS) if word[0].isupper() else {"-"}
            assert tag in allowed or tag == "-", (before, word, tag)
            found.add(tag)
    assert found == {"-", *NOUN_TAGS}
