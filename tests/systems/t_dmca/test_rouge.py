"""Tests of the scores of summaries."""

import sys
from collections import Counter

import numpy as np
import pytest

from tfm.systems.t_dmca.rouge import summary_scores

SUMMARIES = ["the cat sat", "a dog ran far", "", "red green blue"]
REFERENCES = ["the cat sat", "the dog ran", "nothing", "blue green red"]


def f_measure(right, found, expected):
    return 2 * right / (found + expected) if right else 0.0


def n_gram_f_measure(a, b, n):
    """Returns the F-measure of n-grams by hand."""
    grams = [Counter(zip(*(words[i:] for i in range(n)), strict=False)) for words in (a.split(), b.split())]
    return f_measure(sum((grams[0] & grams[1]).values()), *(sum(each.values()) for each in grams))


def longest(a, b):
    """Returns the length of the longest common subsequence."""
    if not a or not b:
        return 0
    if a[0] == b[0]:
        return 1 + longest(a[1:], b[1:])
    return max(longest(a[1:], b), longest(a, b[1:]))


def test_scores_equal_scores_by_hand():
    pytest.importorskip("rouge_score", reason="ROUGE needs the extra rouge")
    exact, one, two, long, _ = (score.value for score in summary_scores(SUMMARIES, REFERENCES))
    pairs = list(zip(SUMMARIES, REFERENCES, strict=True))
    assert exact == 25
    np.testing.assert_allclose(one, 100 * np.mean([n_gram_f_measure(*pair, 1) for pair in pairs]))
    np.testing.assert_allclose(two, 100 * np.mean([n_gram_f_measure(*pair, 2) for pair in pairs]))
    sizes = [(a.split(), b.split()) for a, b in pairs]
    by_hand = [f_measure(longest(a, b), len(a), len(b)) for a, b in sizes]
    np.testing.assert_allclose(long, 100 * np.mean(by_hand))


def test_without_the_package_a_warning_names_the_extra(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    (exact,) = summary_scores(SUMMARIES, REFERENCES)
    assert exact.name == "exact match"
    assert "[rouge]" in caplog.text


def test_words_with_equal_stems_count_and_blanks_around_a_summary_do_not():
    pytest.importorskip("rouge_score", reason="ROUGE needs the extra rouge")
    scores = summary_scores(["the dogs were running", " a cat\n"], ["the dog run", "a cat"])
    values = {score.name: score.value for score in scores}
    first = {"ROUGE-1": f_measure(3, 4, 3), "ROUGE-2": f_measure(1, 3, 2), "ROUGE-L": f_measure(3, 4, 3)}
    first["ROUGE-Lsum"] = first["ROUGE-L"]  # of a single sentence
    expected = {name: 50 * (value + 1) for name, value in first.items()}
    assert values == pytest.approx({"exact match": 50, **expected})
