"""The built-in treebank: trees of the sentences of the grammar, with its structure, in disjoint splits."""

import itertools
import re
from random import Random

import pytest

from tfm.data.trees import clean_tree, list_leaves, read_trees
from tfm.datasets import toy_trees
from tfm.datasets.toy_translation import english, function_words
from tfm.datasets.toy_translation.meaning import Clause, NounPhrase, Sentence
from tfm.datasets.toy_translation.nouns import NOUNS
from tfm.datasets.toy_translation.sentences import sentence
from tfm.datasets.toy_translation.verbs import VERBS
from tfm.errors import UserError

LABELS = {"TOP", "S", "SBAR", "NP", "VP", "PP", "ADJP", "ADVP", "PRT", "QP"}


@pytest.fixture(scope="module")
def lines():
    """The first 300 lines of each split."""
    return {split: list(itertools.islice(toy_trees.generate(split), 300)) for split in toy_trees.SIZES}


@pytest.fixture(scope="module")
def splits(lines):
    """The trees of these."""
    return {split: list(read_trees(found, split)) for split, found in lines.items()}


@pytest.fixture(scope="module")
def texts(lines):
    """All of these in one text."""
    return "".join(itertools.chain(*lines.values()))


def words(tree):
    return " ".join(leaf.word for leaf in list_leaves(tree))


def list_nodes(tree):
    return [tree] + [node for child in getattr(tree, "children", ()) for node in list_nodes(child)]


@pytest.mark.long
def test_a_split_is_the_same_each_time(lines):
    assert list(itertools.islice(toy_trees.generate("test"), 300)) == lines["test"]


def test_splits_share_no_sentence(monkeypatch):
    """Not even where all are drawn from one stream of sentences."""
    monkeypatch.setattr(toy_trees, "Random", lambda seed: Random(7))
    lines = [set(itertools.islice(toy_trees.generate(split), 50)) for split in toy_trees.SIZES]
    assert len(set.union(*lines)) == 150


def test_words_are_those_of_the_sentence():
    rng = Random(3)
    for _ in range(300):
        meaning = sentence(rng)
        (tree,) = read_trees([toy_trees.format_parse(meaning)], "tree")
        said = " ".join(word.text for word in english.say(meaning))
        assert re.sub(r" (n't|[,.])|(can) (?=not)", r"\1\2", words(tree)) == said


def test_trees_are_of_the_grammar(splits):
    for tree in itertools.chain(*splits.values()):
        assert clean_tree(tree) == tree
        assert len(list_leaves(tree)) <= toy_trees.LONGEST
        (top,) = tree.children
        assert top.label == "S"
        assert top.children[-1] == (".", ".")
        for node in list_nodes(tree):
            if not hasattr(node, "children"):
                continue
            assert node.label in LABELS
            labels = [child[0] for child in node.children]
            if node.label == "SBAR":
                assert labels == ["IN", "S"]
            if node.label == "S" and labels != ["VP"]:  # "to sleep" has no subject
                clauses = labels.count("S")
                assert (clauses, labels.count("NP")) >= (2, 0) or labels.count("VP") == 1
            if node.label == "VP":
                assert sum(label.startswith(("V", "MD", "TO")) for label in labels) >= 1


@pytest.mark.parametrize(
    "expected",
    [
        "(VP (VBD did) (RB n't) (VP (VB ",
        "(VP (VBD wanted) (S (VP (TO to) (VP (VB ",
        "(ADVP (RB never)) (VP (VBN ",
        "(SBAR (IN because) (S (NP ",
        "(PP (JJ next) (TO to) (NP ",
        "(ADJP (RB as) (JJ ",
        "(PRT (RP up))",
    ],
)
def test_constructions(texts, expected):
    """Each stands somewhere."""
    assert expected in texts


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (861, "(QP (CD eight) (CD hundred) (CC and) (CD sixty-one))"),
        (100, "(QP (CD one) (CD hundred))"),
        (3, "(CD three)"),
    ],
)
def test_only_a_number_of_several_words_is_a_phrase_of_its_own(number, expected):
    (book,) = (noun for noun in NOUNS if noun.en == "book")
    (own,) = (verb for verb in VERBS if verb.en == "own")
    books = NounPhrase(book, function_words.BARE, plural=True, number=number)
    meaning = Sentence((Clause(function_words.HE, own, (books,), "present"),))
    tree = f"(TOP (S (NP (PRP He)) (VP (VBZ owns) (NP {expected} (NNS books))) (. .)))"
    assert toy_trees.format_parse(meaning) == tree


def test_an_unknown_split_is_refused():
    with pytest.raises(UserError, match="Expected a split out of train, validation, test, got 'long'"):
        next(toy_trees.generate("long"))
