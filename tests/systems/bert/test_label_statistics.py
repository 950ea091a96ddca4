"""Tests of the statistics of labels that `tfm data` shows."""

import json

import pytest

from tests.support.commands import run_command
from tests.support.labelled_texts import write_tables
from tfm.systems.bert.label_statistics import summarize_labels


def test_classes_are_counted_and_classes_of_a_single_split_are_named():
    splits = {"train": ["10", "9", "9", "2", ""], "validation": ["9", "3"]}
    train, validation = summarize_labels(splits, "classes", "label").values()
    assert (train.name, train.title) == ("train", "label")
    assert train.values == {"counts": {"2": 1, "9": 2, "10": 1}, "missing": 1, "majority": 0.5}
    assert list(train.values["counts"]) == ["2", "9", "10"]
    assert train.hints == [
        "1 texts have no label",
        "no other split has the class 2, 10",
        "only one label is 2, 10, so the model can hardly learn it",
    ]
    assert validation.hints == ["no other split has the class 3"]


@pytest.mark.parametrize(
    ("labels", "hint"),
    [(["a", "a"], "all labels are a, so there is nothing to learn"), (["-1"] * 3, "all labels are -1: ")],
)
def test_equal_labels_are_named(labels, hint):
    summary = summarize_labels({"test": labels}, "classes", "label")["test"]
    assert [text for text in summary.hints if text.startswith(hint)]


def test_only_the_most_frequent_of_many_classes_are_shown():
    labels = [str(number) for number in range(30) for _ in range(1 + (number > 12))]
    lines = dict(summarize_labels({"test": labels}, "classes", "label")["test"].lines)
    assert lines["others"] == "10 classes"
    assert {"13", "29", "0", "2"} <= lines.keys()
    assert "3" not in lines


def test_tags_and_entities_are_counted():
    pytest.importorskip("seqeval")
    rows = ["O B-X I-X B-X -", "I-Y O"]
    summary = summarize_labels({"train": rows}, "tags", "label")["train"]
    assert summary.values["counts"] == {"B-X": 2, "I-X": 1, "I-Y": 1, "O": 2}
    assert (summary.values["missing"], summary.values["entities"]) == (1, {"X": 2, "Y": 1})
    assert dict(summary.lines)["entities"] == "3: X 2, Y 1"


def test_numbers_have_a_range_a_mean_and_a_baseline():
    summary = summarize_labels({"train": ["1", "2.5", "4", "x", ""]}, "regression", "score")["train"]
    assert summary.values["minimum"] == 1
    assert summary.values["maximum"] == 4
    assert summary.values["mean"] == pytest.approx(2.5)
    assert summary.values["deviation"] == pytest.approx(1.5**0.5)
    assert summary.hints == ["2 labels are no numbers"]
    equal = summarize_labels({"train": ["3", "3.0"]}, "regression", "score")["train"]
    assert equal.hints == ["all labels are 3, so there is nothing to learn"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (["--config.model.head=tags", "--config.data.label_column=tags"], {"noun", "verb"}),
        (["--config.model.head=regression", "--config.data.label_column=number"], None),
        (["--config.model.head=tags", "--config.data.kind=conll"], {"I-ANIMAL", "O"}),
    ],
)
def test_data_command_shows_labels_of_each_kind(fields, expected, tmp_path):
    write_tables(tmp_path)
    ending = "conll" if "--config.data.kind=conll" in fields else "tsv"
    splits = [f"--config.data.{name}={name}.{ending}" for name in ("train", "validation", "test")]
    result = run_command(
        *("data", "--config=bert_classes", f"--config.data.directory={tmp_path}", "--format=json"),
        *("--config.data.kind=table", *splits, *fields),
    )
    assert result.code == 0, result.error
    train, *_ = json.loads(result.output)
    if expected is None:
        assert train["labels"]["maximum"] > train["labels"]["minimum"] == 0
    else:
        assert train["labels"]["counts"].keys() == expected
