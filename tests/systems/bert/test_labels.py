"""Tests of labels that are integers, booleans or classes, in all forms of the data."""

import csv
import dataclasses
import json
import re

import pyarrow
import pyarrow.parquet
import pytest

from tests.support import tfds_sets
from tests.support.labelled_texts import BERT, make_config
from tfm.data.sources.opening import open_pairs
from tfm.data.tokenizers.characters import Characters
from tfm.errors import UserError
from tfm.systems.bert import classification
from tfm.systems.bert.labelled_texts import LabelledConfig, encode_rows, sort_labels

TEXTS = ["bad", "good film", "good"]
INTEGERS, BOOLEANS = [0, 1, 1], [False, True, True]
NUMBERS = [("bad", "0"), ("good film", "1"), ("good", "1")]
TRUTHS = [("bad", "false"), ("good film", "true"), ("good", "true")]
NAMED = [("bad", "neg"), ("good film", "pos"), ("good", "pos")]


def rows_of(labels):
    return [{"text": text, "label": label} for text, label in zip(TEXTS, labels, strict=True)]


def write_csv(path, labels, delimiter=","):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        writer.writerows([["text", "label"], *zip(TEXTS, labels, strict=True)])


def write_lines(path, labels):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows_of(labels)))


def write_parquet(path, labels, kind=None):
    table = pyarrow.table({"text": TEXTS, "label": pyarrow.array(labels, kind)})
    pyarrow.parquet.write_table(table, path)


FORMS = {
    "tsv": (lambda path: write_csv(path, INTEGERS, "\t"), NUMBERS),
    "csv": (lambda path: write_csv(path, INTEGERS), NUMBERS),
    "jsonl": (lambda path: write_lines(path, INTEGERS), NUMBERS),
    "booleans.jsonl": (lambda path: write_lines(path, BOOLEANS), TRUTHS),
    "json": (lambda path: path.write_text(json.dumps(rows_of(INTEGERS))), NUMBERS),
    "parquet": (lambda path: write_parquet(path, INTEGERS), NUMBERS),
    "bytes.parquet": (lambda path: write_parquet(path, INTEGERS, pyarrow.uint8()), NUMBERS),
    "booleans.parquet": (lambda path: write_parquet(path, BOOLEANS), TRUTHS),
    "texts.parquet": (lambda path: write_parquet(path, ["neg", "pos", "pos"]), NAMED),
}


@pytest.mark.parametrize("form", FORMS)
def test_integers_and_booleans_in_tables_are_labels(tmp_path, form):
    write, expected = FORMS[form]
    write(tmp_path / f"train.{form}")
    config = LabelledConfig(kind="table", directory=str(tmp_path), train=f"train.{form}")
    assert open_pairs(config, "train")[:] == expected


@pytest.mark.parametrize("is_parquet", [False, True])
@pytest.mark.parametrize("feature", ["ClassLabel", "int64", "bool"])
def test_labels_of_datasets_are_the_names_of_their_classes(tmp_path, feature, is_parquet):
    datasets = pytest.importorskip("datasets")
    kind = datasets.ClassLabel(names=["neg", "pos"]) if feature == "ClassLabel" else datasets.Value(feature)
    features = datasets.Features({"text": datasets.Value("string"), "label": kind})
    data = datasets.Dataset.from_list(rows_of(BOOLEANS if feature == "bool" else INTEGERS), features=features)
    expected = {"ClassLabel": NAMED, "int64": NUMBERS, "bool": TRUTHS}[feature]
    if is_parquet:
        data.to_parquet(tmp_path / "train.parquet")
        config = LabelledConfig(kind="table", directory=str(tmp_path), train="train.parquet")
    else:
        datasets.DatasetDict(train=data).save_to_disk(tmp_path / "saved")
        config = LabelledConfig(kind="huggingface", directory=str(tmp_path / "saved"))
    assert open_pairs(config, "train")[:] == expected


def test_unknown_classes_of_datasets_are_an_error(tmp_path):
    """The test splits of GLUE have the label -1."""
    datasets = pytest.importorskip("datasets")
    kind = datasets.ClassLabel(names=["neg", "pos"])
    features = datasets.Features({"text": datasets.Value("string"), "label": kind})
    data = datasets.Dataset.from_list(rows_of([-1, -1, -1]), features=features)
    datasets.DatasetDict(test=data).save_to_disk(tmp_path / "saved")
    config = LabelledConfig(kind="huggingface", directory=str(tmp_path / "saved"))
    with pytest.raises(UserError, match=r"split 'test' .* label -1 instead of a class from 0 to 1"):
        open_pairs(config, "test")[:]


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    """Returns a data_dir that contains the data set tiny_reviews."""
    folder = str(tmp_path_factory.mktemp("tfds"))
    tfds_sets.TinyReviews(data_dir=folder, file_format="array_record").download_and_prepare(
        file_format="array_record"
    )
    return folder


@pytest.mark.parametrize(
    ("feature", "labels"),
    [
        ("label", ["neg", "pos", "pos"]),
        ("stars", ["0", "3", "6"]),
        ("is_long", ["false", "true", "false"]),
        ("share", ["0.5", "0.5", "0.5"]),
        ("text", TEXTS),
    ],
)
def test_labels_of_tfds_are_classes_integers_or_booleans(reviews, feature, labels):
    config = LabelledConfig(kind="tfds", name="tiny_reviews", directory=reviews, label_column=feature)
    assert sorted(open_pairs(config, "train")[:]) == sorted(zip(TEXTS, labels, strict=True))


def test_other_features_of_tfds_are_no_labels(reviews):
    numbers = LabelledConfig(kind="tfds", name="tiny_reviews", directory=reviews, text_column="stars")
    with pytest.raises(UserError, match=r"'stars' .* is not text:"):
        open_pairs(numbers, "train")


def test_unknown_classes_of_tfds_are_an_error(reviews):
    config = LabelledConfig(kind="tfds", name="tiny_reviews", directory=reviews)
    with pytest.raises(UserError, match=r"tiny_reviews/1\.0\.0 have the label -1"):
        open_pairs(config, "unsupervised")[:]


@pytest.mark.parametrize("label", [{"a": 1}, [[1]]])
def test_other_values_are_no_labels(tmp_path, label):
    (tmp_path / "train.jsonl").write_text(json.dumps({"text": "good", "label": label}) + "\n")
    config = LabelledConfig(kind="table", directory=str(tmp_path), train="train.jsonl")
    with pytest.raises(UserError, match=r"Line 1 of .*'label"):
        open_pairs(config, "train")[:]


def test_texts_may_not_be_numbers(tmp_path):
    write_lines(tmp_path / "train.jsonl", INTEGERS)
    config = LabelledConfig(
        kind="table", directory=str(tmp_path), train="train.jsonl", text_column="label", label_column="text"
    )
    with pytest.raises(UserError, match="expected text in the column 'label', got int"):
        open_pairs(config, "train")[:]


def write_splits(folder, **labels):
    """Writes a JSON Lines file for each split, and returns the fields of the config that name the files."""
    for split, values in labels.items():
        rows = [{"text": f"the dog {number}", "label": value} for number, value in enumerate(values)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {split: f"{split}.jsonl" for split in labels}


def create(folder, classes, **fields):
    """Creates the task of a new run."""
    model = dataclasses.replace(BERT, head="classes", classes=classes)
    run = folder / f"run-{classes}"
    run.mkdir(exist_ok=True)
    return classification.create(make_config(folder, model, **fields), str(run))


def test_the_training_split_may_lack_a_class(tmp_path, caplog):
    """The messages asked for 2 classes and then for the label of the third in the training split."""
    splits = write_splits(tmp_path, train=[0, 1] * 9, validation=[0, 1, 2], test=[1])
    task = create(tmp_path, 3, **splits)
    assert task.label_names == ["0", "1", "2"]
    assert "no example of the class 2" in caplog.text
    with pytest.raises(UserError, match=r"'validation' also has 2.*set model\.classes to 3"):
        create(tmp_path, 2, **splits)
    with pytest.raises(UserError, match=r"set model\.classes to 3"):
        create(tmp_path, 4, **splits)


def test_a_test_split_without_labels_may_be_left_out(tmp_path):
    """The test splits of GLUE have the label -1."""
    splits = write_splits(tmp_path, train=[0, 1] * 9, validation=[0, 1], test=[-1, -1])
    with pytest.raises(UserError, match=r"'test' also has -1.*leave data\.test empty"):
        create(tmp_path, 2, **splits)
    assert create(tmp_path, 2, **splits | {"test": ""}).label_names == ["0", "1"]


def test_labels_that_a_run_does_not_know_are_an_error(tmp_path):
    splits = write_splits(tmp_path, train=[0, 1] * 9, validation=[0, 1], test=[1])
    task = create(tmp_path, 2, **splits)
    write_splits(tmp_path, test=[3])
    with pytest.raises(UserError, match=r"split 'test': .*labels of the run \(0, 1\), got '3'"):
        task.open_split("test")


def test_integers_are_sorted_by_their_values():
    assert sort_labels(["10", "2", "-1"]) == ["-1", "2", "10"]
    assert sort_labels(["10", "2", "a"]) == ["10", "2", "a"]


def test_classes_that_are_integers_keep_their_order(tmp_path):
    splits = write_splits(tmp_path, train=[*range(12)] * 3, validation=[0], test=[11])
    assert create(tmp_path, 12, **splits).label_names == [str(number) for number in range(12)]


def test_rows_without_a_label_are_an_error(tmp_path):
    splits = write_splits(tmp_path, train=[0, None, 1], validation=[0], test=[1])
    with pytest.raises(
        UserError, match=r"'train': .* 1 rows have none, for example line 2 of .*train.jsonl, 'the dog 1'"
    ):
        create(tmp_path, 2, **splits)


@pytest.mark.parametrize(
    ("max_length", "warning"), [(8, "of up to 9 tokens, .*data.max_length=11 keeps"), (11, "")]
)
def test_texts_that_are_cut_are_counted(max_length, warning, caplog):
    rows = [("bad", "no"), ("good film", "yes")]
    encode_rows(rows, Characters(), ["no", "yes"], max_length, has_tags=False)
    assert re.search(warning, caplog.text) if warning else not caplog.text


@pytest.mark.parametrize("texts", [("good film",), ("good film", "the dog")])
def test_texts_of_the_recommended_length_are_not_cut(texts, caplog):
    def encode(max_length):
        caplog.clear()
        encode_rows([(*texts, "yes")], Characters(), ["yes"], max_length, has_tags=False)
        return caplog.text

    recommended = int(re.search(r"data\.max_length=(\d+) keeps", encode(8))[1])
    assert not encode(recommended)
    assert f"data.max_length={recommended} keeps" in encode(recommended - 1)
