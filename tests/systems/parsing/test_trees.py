"""Tests of bracketed text, of trees as sequences, and of the repair of malformed sequences."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfm.errors import UserError
from tfm.systems.parsing.trees import (
    MAX_DEPTH,
    TOP,
    Leaf,
    Node,
    Span,
    clean_tree,
    format_tree,
    linearize,
    list_leaves,
    list_spans,
    read_trees,
    restore_tree,
    split_words,
)

JOHN = "(TOP (S (NP (NNP John)) (VP (VBZ has) (NP (DT a) (NN dog))) (. .)))"
TOKENS = "(S (NP NNP )NP (VP VBZ (NP DT NN )NP )VP . )S"  # figure 2 of Vinyals et al.


def read(text):
    (tree,) = read_trees(text.split("\n"), "text")
    return tree


def test_reading_and_writing_restores_the_text():
    tree = read(JOHN)
    assert tree.label == TOP
    assert [leaf.word for leaf in list_leaves(tree)] == ["John", "has", "a", "dog", "."]
    assert format_tree(tree) == JOHN


@pytest.mark.parametrize("outer", ["({})", "( {} )", "(TOP {})", "(ROOT {})", "(S1 {})", "{}", "\n({}\n)\n"])
def test_any_outermost_bracket_becomes_top(outer):
    inner = "(S (NP (NNP John)) (VP (VBZ\n  sleeps)))"
    assert format_tree(read(outer.format(inner))) == "(TOP (S (NP (NNP John)) (VP (VBZ sleeps))))"


def test_one_line_may_contain_several_trees():
    trees = list(read_trees(["((S (NN a)) (. .)) (NN b)", "", "(FRAG (NN c))"], "text"))
    assert list(map(format_tree, trees)) == [
        "(TOP (S (NN a)) (. .))",
        "(TOP (NN b))",
        "(TOP (FRAG (NN c)))",
    ]


def test_cleaning_removes_empty_elements_and_functions():
    tree = read(
        "( (S (NP-SBJ-1 (NNP Ann)) (VP (VBZ is) (VP (VBN seen) (NP (-NONE- *-1)) (PRT|ADVP (RP up))"
        "(SBAR (-NONE- 0) (S (-NONE- *T*-2))) (NP=2 (-LRB- -LRB-) (NN x))))))"
    )
    assert format_tree(clean_tree(tree)) == (
        "(TOP (S (NP (NNP Ann)) (VP (VBZ is) (VP (VBN seen) (PRT (RP up)) (NP (-LRB- -LRB-) (NN x))))))"
    )


def test_cleaning_removes_functions_of_tags_and_keeps_words():
    tree = read("(S (NP (JJ|NN-1 well-known) (-LRB- -LRB-)) (VB=2 a=b|c))")
    assert format_tree(clean_tree(tree)) == "(TOP (S (NP (JJ well-known) (-LRB- -LRB-)) (VB a=b|c)))"


@pytest.mark.parametrize("label", ["TOP", "ROOT", "S1"])
def test_only_an_outermost_label_becomes_top(label):
    assert format_tree(read(f"(S ({label} (NN a)))")) == f"(TOP (S ({label} (NN a))))"


def test_linearized_tree_equals_figure_2_of_vinyals():
    assert " ".join(linearize(read(JOHN))) == TOKENS


def test_spans_are_counted_in_words():
    assert list_spans(read(JOHN)) == [
        Span("TOP", 0, 5),
        Span("S", 0, 5),
        Span("NP", 0, 1),
        Span("VP", 1, 4),
        Span("NP", 2, 4),
    ]
    tree = read("(S (NP (DT a) (NN b)) (VP (VB c)))")
    assert list_spans(tree)[2:] == [Span("NP", 0, 2), Span("VP", 2, 3)]


def random_tree(rng, depth):
    children = [
        Leaf(rng.choice(("XX", ",", ".")), rng.choice(("a", "-LRB-", "ü")))
        if depth == 0 or rng.random() < 0.4
        else random_tree(rng, depth - 1)
        for _ in range(rng.randint(1, 3))
    ]
    return Node(rng.choice(("NP", "VP", "PP-X")), tuple(children))


@pytest.mark.parametrize("seed", range(20))
def test_linearized_tree_is_restored(seed):
    tree = Node(TOP, (random_tree(random.Random(seed), 5),))
    words = [leaf.word for leaf in list_leaves(tree)]
    assert restore_tree(linearize(tree), words) == (tree, ())
    assert read(format_tree(tree)) == tree


@pytest.mark.parametrize(
    ("tokens", "words", "tree", "repairs"),
    [
        ("(S (NP XX )NP )VP XX )S", "a b", "(TOP (S (NP (XX a)) (XX b)))", ("unopened",)),
        ("(S (NP (QP XX )NP XX )S", "a b", "(TOP (S (NP (QP (XX a))) (XX b)))", ("unclosed",)),
        ("(S (NP XX", "a", "(TOP (S (NP (XX a))))", ("unclosed",)),
        ("(S (NP )NP XX )S", "a", "(TOP (S (XX a)))", ("empty",)),
        ("(S XX XX . )S", "a b", "(TOP (S (XX a) (XX b)))", ("too many tags",)),
        ("(S XX )S", "a b c", "(TOP (S (XX a)) (XX b) (XX c))", ("missing tags",)),
        ("(S (NP XX", "a b", "(TOP (S (NP (XX a) (XX b))))", ("missing tags", "unclosed")),
        ("( (S ) XX ((NP XX )NP )S", "a b", "(TOP (S (XX a) (NP (XX b))))", ("no label",)),
        ("X(X )S", "a", "(TOP (X-LRB-X a))", ("unopened",)),
        ("(S XX )S )TOP", "a", "(TOP (S (XX a)))", ("unopened",)),
        ("", "a", "(TOP (XX a))", ("missing tags",)),
    ],
)
def test_malformed_sequences_are_repaired(tokens, words, tree, repairs):
    restored = restore_tree(tokens.split(), words.split())
    assert (format_tree(restored.tree), restored.repairs) == (tree, repairs)


def test_too_deep_sequence_is_cut():
    tokens = ["(S"] * 10_000 + ["XX"] + [")S"] * 10_000
    found = restore_tree(tokens, ["a"])
    assert found.repairs == ("too deep", "unopened")
    assert len(list_spans(found.tree)) == MAX_DEPTH - 1
    assert read(format_tree(found.tree)) == found.tree


@pytest.mark.long
@settings(max_examples=200)
@given(
    st.lists(st.text("()SNPX.,|- ", min_size=1, max_size=4)),
    st.lists(st.text(st.characters(categories=("L", "P", "S")), min_size=1, max_size=4)),
)
def test_any_sequence_yields_a_readable_tree_with_all_words(pieces, words):
    words = split_words(" ".join(words))
    tree = restore_tree(" ".join(pieces).split(), words).tree
    assert [leaf.word for leaf in list_leaves(tree)] == words
    if words:
        assert read(format_tree(tree)) == tree


def test_parentheses_of_a_sentence_are_escaped():
    assert split_words(" He ( f(x) )\tleft ") == ["He", "-LRB-", "f-LRB-x-RRB-", "-RRB-", "left"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["(S (NN a)"], r"text .* line 1\b.* 1 "),
        (["(NN a)", "(S (NN b)))"], r"Line 2 of text .*'\)' outside"),
        (["((S (NN a))", "((S (NN b)))"], r"Line 2 of text .*'\(\(...\)\)' .* line 1"),
        (["()"], r"Line 1 of text .* '\(\)'"),
        (["(S (NP ) (NN a))"], r"Line 1 of text .* '\(NP\)'"),
        (["a (NN b)"], r"Line 1 of text .*'a' outside"),
        (["(NN a b)"], r"Line 1 of text .*\(NN a b\)"),
        (["(NP (NN a) b)"], r"Line 1 of text .*\(NP \(...\) b\)"),
        (["((NN a) b)"], r"Line 1 of text .* '\(\(...\) b\)'"),
        (["(NP a (NN b))"], r"Line 1 of text .* '\(NP a \(...\)\)'"),
        (["", "(S " * 10_000], r"Line 2 of text .* 200 brackets"),
    ],
)
def test_malformed_trees_are_errors_with_a_line(lines, message):
    with pytest.raises(UserError, match=message):
        list(read_trees(lines, "text"))
