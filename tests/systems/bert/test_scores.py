"""Tests of F1, correlations and the scores of entities."""

import sys

import numpy as np
import pytest
import sklearn.metrics

from tfm.errors import UserError
from tfm.systems.bert.scores import (
    ClassCounts,
    EntityScores,
    are_entity_tags,
    class_scores,
    entity_scores,
    number_scores,
    summarize_classes,
    summarize_numbers,
)

# The tags of words in the data and as predicted, in IOB1, IOB2 and neither. The script conlleval.pl of
# CoNLL-2003 gives 12 entities, 10 predicted and 6 correct ones, and the scores below.
ODD_TAGS = [
    ("I-PER I-PER O I-LOC B-LOC", "I-PER I-PER O I-LOC I-LOC"),
    ("B-ORG I-ORG I-LOC O", "B-ORG I-ORG I-ORG O"),
    ("B-PER I-LOC I-LOC B-LOC", "B-PER B-LOC I-LOC B-LOC"),
    ("O I-MISC I-PER", "O B-MISC I-PER"),
    ("B-PER B-PER I-PER O O", "B-PER I-PER I-PER O B-ORG"),
]
LABELLED, PREDICTED = ([row[side].split() for row in ODD_TAGS] for side in range(2))
CONLLEVAL = {
    "entity precision": 60.00,
    "entity recall": 50.00,
    "entity F1": 54.55,
    "entity F1 of LOC": 50.00,
    "entity F1 of MISC": 100.00,
    "entity F1 of ORG": 0.00,
    "entity F1 of PER": 66.67,
}


def by_name(scores):
    return {score.name: score.value for score in scores}


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_f1_and_matthews_correlation_equal_those_of_scikit_learn(classes):
    rng = np.random.default_rng(classes)
    labels = rng.integers(max(classes - 1, 2), size=60)  # of several classes, one has no example
    predictions = np.where(rng.random(60) < 0.6, labels, rng.integers(classes, size=60))
    scores = summarize_classes(predictions, labels, classes)
    assert scores["macro_f1"] == pytest.approx(sklearn.metrics.f1_score(labels, predictions, average="macro"))
    assert scores["matthews"] == pytest.approx(sklearn.metrics.matthews_corrcoef(labels, predictions))
    assert ("f1" in scores) == (classes == 2)
    expected = sklearn.metrics.f1_score(labels, predictions, average=None, labels=np.arange(classes))
    np.testing.assert_allclose(ClassCounts.of(predictions, labels, classes).f1(), expected)


def test_f1_of_two_classes_is_that_of_the_last_class():
    predictions, labels = np.array([0, 1, 1, 1]), np.array([0, 0, 1, 1])
    assert summarize_classes(predictions, labels, 2)["f1"] == sklearn.metrics.f1_score(labels, predictions)
    assert by_name(class_scores(predictions, labels, ["no", "yes"])) == pytest.approx(
        {"Matthews correlation": 0.57735, "macro F1": 73.3333, "F1 of no": 66.6667, "F1 of yes": 80.0}
    )


def test_equal_predictions_have_no_correlation():
    scores = summarize_classes(np.zeros(4, int), np.array([0, 0, 1, 0]), 2)
    assert (scores["matthews"], scores["f1"]) == (0.0, 0.0)
    assert np.isnan(summarize_numbers(np.ones(3, np.float32), np.arange(3.0))["pearson"])


def test_correlations_of_numbers():
    predictions, labels = np.float32([1, 2, 4, 3]), np.float32([0, 1, 10, 2])
    scores = by_name(number_scores(predictions, labels))
    assert scores["Pearson correlation"] == pytest.approx(np.corrcoef(predictions, labels)[0, 1])
    assert scores["Spearman correlation"] == pytest.approx(1.0)
    assert scores["squared error"] == pytest.approx((1 + 1 + 36 + 1) / 4)


def test_scores_of_entities_equal_those_of_conlleval():
    pytest.importorskip("seqeval")
    assert by_name(entity_scores(PREDICTED, LABELLED)) == pytest.approx(CONLLEVAL, abs=0.005)


@pytest.mark.parametrize(
    ("tags", "iob2"),
    [("B-X L-X U-Y O", "B-X I-X B-Y O"), ("B-X E-X S-Y O", "B-X I-X B-Y O")],
    ids=["BILOU", "IOBES"],
)
def test_other_schemes_have_the_same_entities(tags, iob2):
    pytest.importorskip("seqeval")
    scores = EntityScores.of([tags.split()], [iob2.split()])
    assert (scores.types, scores.overall) == (["X", "Y"], (1.0, 1.0, 1.0))


def test_sentences_without_entities_have_the_score_0():
    pytest.importorskip("seqeval")
    assert EntityScores.of([["O"]], [["O"]]).overall == (0.0, 0.0, 0.0)
    assert EntityScores.of([["O", "O"]], [["O", "B-X"]]).overall == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["O", "B-PER", "I-PER"], True),
        (["B-PER"], True),
        (["O", "S-LOC", "E-LOC", "L-X", "U-X"], True),
        (["O"], False),
        ([], False),
        (["NN", "B-PER"], False),
        (["O", "B-"], False),
        (["f.acc", "m.nom"], False),
    ],
)
def test_tags_of_entities_are_recognized(names, expected):
    assert are_entity_tags(names) == expected


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "seqeval.metrics", None)
    with pytest.raises(UserError, match=r"seqeval.*\[tags\]"):
        entity_scores(PREDICTED, LABELLED)
