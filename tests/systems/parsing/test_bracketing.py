"""Tests of labelled bracketing against scores computed by hand, rule by rule of evalb."""

import pytest

from tfm.errors import UserError
from tfm.systems.parsing.bracketing import Counts, Parse, bracketing_scores, count_brackets
from tfm.systems.parsing.trees import list_leaves, list_spans, read_trees

GOLD = (
    "(TOP (S (NP (DT the) (NN man)) (VP (VBD saw) (NP (DT a) (NN dog)) (PP (IN with) (NP (NN joy)))) (. .)))"
)


def parse(text):
    (tree,) = read_trees([text], "text")
    leaves = list_leaves(tree)
    return Parse([leaf.word for leaf in leaves], [leaf.tag for leaf in leaves], list_spans(tree))


def count(gold, test):
    return count_brackets(parse(gold), parse(test))


def values(golds, tests):
    found = bracketing_scores([parse(gold) for gold in golds], [parse(test) for test in tests])
    return {score.name: score.value for score in found}


def test_tree_matches_itself():
    # The brackets are S 0-7, NP 0-2, VP 2-7, NP 3-5, PP 5-7 and NP 6-7. TOP does not count.
    assert count(GOLD, GOLD) == Counts(6, 6, 6, False)


def test_different_attachment_adds_one_bracket():
    """The object contains the PP, which adds NP 3-7. S, NP, VP, NP 3-5, PP and NP 6-7 match."""
    test = GOLD.replace(
        "(NP (DT a) (NN dog)) (PP (IN with) (NP (NN joy)))",
        "(NP (NP (DT a) (NN dog)) (PP (IN with) (NP (NN joy))))",
    )
    assert count(GOLD, test) == Counts(6, 6, 7, False)
    assert count(test, GOLD) == Counts(6, 7, 6, False)


def test_wrong_labels_and_missing_brackets_do_not_match():
    test = "(TOP (S (NP (DT the) (NN man)) (VP (VBD saw) (ADJP (DT a) (NN dog)) (IN with) (NN joy)) (. .)))"
    assert count(GOLD, test) == Counts(3, 6, 4, False)  # S, NP and VP match


def test_attachment_of_punctuation_does_not_count():
    """Punctuation is deleted before spans are counted."""
    assert count(GOLD, GOLD.replace(") (. .)))", " (. .))))")) == Counts(6, 6, 6, False)


def test_equal_brackets_match_by_count():
    one, two = "(TOP (NP (NN a)))", "(TOP (NP (NP (NN a))))"
    assert count(two, two) == Counts(2, 2, 2, False)
    assert count(one, two) == Counts(1, 1, 2, False)
    assert count(two, one) == Counts(1, 2, 1, False)


def test_prt_equals_advp_and_function_labels_are_ignored():
    gold = "(TOP (VP (VB get) (PRT (RP up))))"
    assert count(gold, gold.replace("PRT", "ADVP")) == Counts(2, 2, 2, False)
    assert count(gold, gold.replace("VP", "VP-SBJ")) == Counts(2, 2, 2, False)
    assert count(gold, gold.replace("VP", "VP=1")) == Counts(2, 2, 2, False)


def test_brackets_around_only_punctuation_do_not_count():
    assert count("(TOP (S (NN a) (PRN (, ,) (: --))))", "(TOP (S (NN a) (, ,) (: --)))") == Counts(
        1, 1, 1, False
    )


def test_wrong_tags_matter_only_for_punctuation():
    assert count(GOLD, GOLD.replace("VBD", "XX")) == Counts(6, 6, 6, False)
    assert count(GOLD, GOLD.replace("(. .)", "(XX .)")) == Counts(0, 6, 6, True)


@pytest.mark.parametrize("test", ["(TOP (NN a))", "(TOP (S (NN a) (NN c)))", "(TOP (S (. a) (. b)))"])
def test_different_words_are_an_error(test):
    assert count("(TOP (S (NN a) (NN b)))", test).is_error


def test_sentence_of_only_punctuation_is_an_error():
    assert count("(TOP (X (. a) (. b)))", "(TOP (X (. a) (. b)))") == Counts(0, 0, 0, True)


def test_scores_of_a_corpus_sum_brackets_before_division():
    """The first two sentences match 6 brackets of 6 and 7, and 1 bracket of 1 and 1. The third is an error.

    Without the error, 7 brackets match of 7 gold and 8 test brackets. The precision is 7 / 8, the recall 1
    and F1 14 / 15. One of two sentences is complete. With the error, 7 brackets match of 9 gold and 9 test
    brackets.
    """
    attached = GOLD.replace(
        "(NP (DT a) (NN dog)) (PP (IN with) (NP (NN joy)))",
        "(NP (NP (DT a) (NN dog)) (PP (IN with) (NP (NN joy))))",
    )
    golds = [GOLD, "(TOP (S (NN a)))", "(TOP (S (NP (NN a) (NN b))))"]
    tests = [attached, "(TOP (S (NN a)))", "(TOP (S (NN a)))"]
    assert values(golds, tests) == pytest.approx(
        {
            "bracketing F1": 100 * 14 / 15,
            "bracketing precision": 87.5,
            "bracketing recall": 100,
            "complete match": 50,
            "error sentences": 100 / 3,
            "bracketing F1, all": 100 * 14 / 18,
        }
    )


def test_scores_without_brackets_are_zero():
    assert set(values(["(TOP (NN a))"], ["(TOP (NN b))"]).values()) == {0, 100}
    assert values(["(TOP (NN a))"], ["(TOP (NN a))"])["bracketing F1"] == 0


def test_unequal_or_empty_lists_of_trees_are_errors():
    for golds, tests in (([], []), ([parse(GOLD)], [])):
        with pytest.raises(UserError, match=r"trees .*references"):
            bracketing_scores(golds, tests)
