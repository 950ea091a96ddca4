"""Tests of trees in the columns of CoNLL-2012 and CoNLL-2005, and of the statistics of treebanks."""

import types

import pytest

from tfm.data.config import PairsConfig
from tfm.data.sources.opening import open_pairs
from tfm.errors import UserError
from tfm.systems.parsing.columns import convert_columns, has_columns
from tfm.systems.parsing.statistics import find_depth, inspect_split
from tfm.systems.parsing.treebank import TREEBANK

CONLL_2012 = """#begin document (nw/wsj/00/wsj_0020); part 000
nw/wsj/00/wsj_0020   0   0    They   PRP   (TOP(S(NP*)      -   -   -   -   *   (ARG1*)   (0)
nw/wsj/00/wsj_0020   0   1    left   VBD       (VP*         -   -   -   -   *      *       -
nw/wsj/00/wsj_0020   0   2       (     (   (PRN-2*)))       -   -   -   -   *      *       -
nw/wsj/00/wsj_0020   0   3       .     .            *))     -   -   -   -   *      *       -

nw/wsj/00/wsj_0020   0   0      Go    VB     (TOP(S*))      -   -   -   -   *      *       -
#end document
"""
CONLL_2005 = "They\tPRP\t(S(NP*)\nleft\tVBD\t(VP*)\n.\t.\t*)\n"


def make(folder, **fields):
    languages = {"source_language": "words", "target_language": "trees"}
    return PairsConfig(**{"kind": TREEBANK, "directory": str(folder)} | languages | fields)


def test_columns_of_conll_2012_become_trees(tmp_path):
    (tmp_path / "train").write_text(CONLL_2012.replace("(PRN-2*)))", "(PRN-2*))"))
    assert open_pairs(make(tmp_path), "train")[:] == [
        ("They left -LRB- .", "(S (NP PRP )NP (VP VBD (PRN -LRB- )PRN )VP . )S"),
        ("Go", "(S VB )S"),
    ]


def test_columns_of_conll_2005_become_trees(tmp_path):
    (tmp_path / "train.txt").write_text(CONLL_2005)
    assert open_pairs(make(tmp_path), "train")[:] == [("They left .", "(S (NP PRP )NP (VP VBD )VP . )S")]


def test_arguments_and_number_signs_of_conll_2005_are_read(tmp_path):
    # Names and arguments of verbs follow the tree. The Wall Street Journal writes pounds as "#".
    (tmp_path / "train").write_text(
        "It PRP (S(NP*) * - (A1*)\n"
        "cost VBD (VP* * cost (V*)\n"
        "# # (NP(QP* * - (A3*\n"
        "5 CD * * - *\n"
        "billion CD *))) * - *)\n"
        ". . *) * - *\n"
    )
    assert open_pairs(make(tmp_path), "train")[:] == [
        ("It cost # 5 billion .", "(S (NP PRP )NP (VP VBD (NP (QP # CD CD )QP )NP )VP . )S")
    ]


def test_files_with_brackets_and_with_columns_are_found_by_a_pattern(tmp_path):
    for name, content in (("a_gold_conll", CONLL_2005), ("b.mrg", "( (NN b) )"), ("c.parse", "(TOP (NN c))")):
        (tmp_path / name).write_text(content)
    words = [words for words, _ in open_pairs(make(tmp_path, train="*_gold_conll, b, *.parse"), "train")]
    assert words == ["They left .", "b", "c"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (CONLL_2012, "Line 5 of x is outside"),
        (CONLL_2012.replace("(PRN-2*)))", "(PRN-2*"), "Line 6 of x ends a sentence .* lacks 2 closing"),
        (CONLL_2012.replace("They", "[WORD]"), r"Line 2 of x has \[WORD\] .*skeleton2conll"),
        (CONLL_2005[:-3], "Line 3 of x has no part"),
        (CONLL_2005.replace("*)\n", "*\n"), "x ends inside a tree that lacks 3 closing"),
        ("a\tNN\t*\nb\tNN\t*\n", r"Line 1 of x is outside the brackets of a tree: '\*'"),
    ],
)
def test_damaged_columns_are_an_error_with_their_line(content, message):
    with pytest.raises(UserError, match=message):
        list(convert_columns(content.splitlines(), "x"))


@pytest.mark.parametrize(
    ("line", "expected"),
    [("#begin document (x)", True), ("a DT (S*)", True), ("(S (NN a))", False), ("((NP (-NONE- *)))", False)],
)
def test_first_line_shows_the_form(line, expected):
    assert has_columns(line) == expected


def test_statistics_show_lengths_depths_and_labels(tmp_path):
    (tmp_path / "train").write_text("(S (NP (DT a) (NN b)) (VP (VB c)))\n(NP (NN d))\n")
    config = types.SimpleNamespace(data=make(tmp_path, max_length=9, batch_tokens=9))
    summary = inspect_split(config, "train")
    assert summary.title == "2 trees"
    assert summary.values["words"] == {"mean": 2, "p95": 3, "largest": 3}
    assert summary.values["depth"] == {"mean": 1.5, "p95": 2, "largest": 2}
    assert summary.values["labels"] == {"NP": 2, "S": 1, "VP": 1}
    assert summary.values["tags"] == {"NN": 2, "DT": 1, "VB": 1}
    assert "1 trees have at least data.max_length (9) tokens" in summary.hints[0]
    assert find_depth(["(A", "(B", "x", ")B", "(B", "(C", "y", ")C", ")B", ")A"]) == 3
