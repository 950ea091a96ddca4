"""Labelled bracketing: scores of trees computed by hand, each rule of evalb by itself."""

import pytest

from tfm.data.trees import list_leaves, list_spans, read_trees
from tfm.errors import UserError
from tfm.evaluation.bracketing import Counts, Parse, bracketing_scores, count_brackets

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


def test_a_tree_matches_itself():
    # S 0-7, NP 0-2, VP 2-7, NP 3-5, PP 5-7, NP 6-7; TOP does not count.
    assert count(GOLD, GOLD) == Counts(6, 6, 6, False)


def test_another_attachment():
    """The PP inside of the object: NP 3-7 is new; S, NP, VP, NP 3-5, PP and NP 6-7 match."""
    test = GOLD.replace(
        "(NP (DT a) (NN dog)) (PP (IN with) (NP (NN joy)))",
        "(NP (NP (DT a) (NN dog)) (PP (IN with) (NP (NN joy))))",
    )
    assert count(GOLD, test) == Counts(6, 6, 7, False)
    assert count(test, GOLD) == Counts(6, 7, 6, False)


def test_a_wrong_label_and_a_missing_bracket():
    test = "(TOP (S (NP (DT the) (NN man)) (VP (VBD saw) (ADJP (DT a) (NN dog)) (IN with) (NN joy)) (. .)))"
    assert count(GOLD, test) == Counts(3, 6, 4, False)  # S, NP and VP of 4 match


def test_sentence_end_may_be_inside_or_outside():
    """Punctuation is deleted before spans are counted, so its attachment does not matter."""
    assert count(GOLD, GOLD.replace(") (. .)))", " (. .))))")) == Counts(6, 6, 6, False)


def test_equal_brackets_match_by_count():
    one, two = "(TOP (NP (NN a)))", "(TOP (NP (NP (NN a))))"
    assert count(two, two) == Counts(2, 2, 2, False)
    assert count(one, two) == Counts(1, 1, 2, False)
    assert count(two, one) == Counts(1, 2, 1, False)


def test_prt_equals_advp_and_functions_are_cut():
    gold = "(TOP (VP (VB get) (PRT (RP up))))"
    assert count(gold, gold.replace("PRT", "ADVP")) == Counts(2, 2, 2, False)
    assert count(gold, gold.replace("VP", "VP-SBJ")) == Counts(2, 2, 2, False)
    assert count(gold, gold.replace("VP", "VP=1")) == Counts(2, 2, 2, False)


def test_bracket_of_punctuation_does_not_count():
    assert count("(TOP (S (NN a) (PRN (, ,) (: --))))", "(TOP (S (NN a) (, ,) (: --)))") == Counts(
        1, 1, 1, False
    )


def test_only_tags_of_punctuation_count():
    assert count(GOLD, GOLD.replace("VBD", "XX")) == Counts(6, 6, 6, False)
    assert count(GOLD, GOLD.replace("(. .)", "(XX .)")) == Counts(0, 6, 6, True)


@pytest.mark.parametrize("test", ["(TOP (NN a))", "(TOP (S (NN a) (NN c)))", "(TOP (S (. a) (. b)))"])
def test_other_words_are_an_error(test):
    assert count("(TOP (S (NN a) (NN b)))", test).is_error


def test_sentence_of_punctuation_is_left_out():
    assert count("(TOP (X (. a) (. b)))", "(TOP (X (. a) (. b)))") == Counts(0, 0, 0, True)


def test_a_corpus_adds_brackets_before_it_divides():
    """Three sentences: 6 of 6 and 7 brackets; 1 of 1 and 1; an error with 2 and 1.

    By evalb: matched 7, gold 7, test 8, so precision 7 / 8, recall 1, F1 14 / 15; 1 of 2 complete, 1 of 3 an
    error. With the error: matched 7, gold 9, test 9.
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


def test_without_a_bracket_scores_are_zero():
    assert set(values(["(TOP (NN a))"], ["(TOP (NN b))"]).values()) == {0, 100}
    assert values(["(TOP (NN a))"], ["(TOP (NN a))"])["bracketing F1"] == 0


def test_unequal_numbers_are_refused():
    for golds, tests in (([], []), ([parse(GOLD)], [])):
        with pytest.raises(UserError, match=r"trees .*references"):
            bracketing_scores(golds, tests)
