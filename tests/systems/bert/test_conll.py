"""Tests of words with tags in columns, as in CoNLL-2003, and in lists, as in Hugging Face's data sets."""

import dataclasses
import json

import pyarrow
import pyarrow.parquet
import pytest

from tests.support.labelled_texts import BERT, make_config
from tfm.data.sources.opening import open_pairs
from tfm.errors import UserError
from tfm.systems.bert import classification
from tfm.systems.bert.labelled_texts import LabelledConfig

CONLL_2003 = """\
-DOCSTART- -X- O O

The DT I-NP O
dog NN I-NP I-ORG
runs VBZ I-VP O
. . O O

-DOCSTART- -X- O O

# # I-NP O
Lena NNP I-NP I-PER
"""
GERM_EVAL = """\
#\thttp://example.org
# a comment
1\tLena\tB-PER\tO
2\tläuft\tO\tO

1\tNew York\tB-LOC\tO
"""
MULTI_CONER = """\
# id 5239d808\tdomain=en
Lena _ _ B-PER
runs _ _ O

# id 3f2a71bc\tdomain=en
# _ _ O
5 _ _ O
"""
CONLL_U = """\
# sent_id = 1
# text = Im Haus
1-2\tIm\t_\t_\t_\t_\t_\t_\t_\t_
1\tIn\tin\tADP\t_\t_\t3\tcase\t_\t_
2\tdem\tder\tDET\t_\t_\t3\tdet\t_\t_
3\tHaus\tHaus\tNOUN\t_\t_\t0\troot\t_\t_
3.1\tist\tsein\tAUX\t_\t_\t_\t_\t_\t_

"""


def read(folder, content, **fields):
    """Returns the rows of a file in columns."""
    (folder / "train.conll").write_bytes(content.encode())
    config = LabelledConfig(kind="conll", directory=str(folder), train="train.conll", **fields)
    return open_pairs(config, "train")


def test_sentences_end_at_blank_lines_and_at_documents(tmp_path):
    source = read(tmp_path, CONLL_2003)
    assert source[:] == [("The dog runs .", "O I-ORG O O"), ("# Lena", "O I-PER")]
    assert source.locate(1) == f"line 10 of {tmp_path / 'train.conll'}"


@pytest.mark.parametrize(
    "change", [lambda text: text.replace("\n", "\r\n"), str.rstrip, lambda text: "\ufeff" + text]
)
def test_line_ends_and_the_end_of_the_file_do_not_matter(change, tmp_path):
    assert read(tmp_path, change(CONLL_2003))[:] == read(tmp_path, CONLL_2003)[:]


def test_columns_are_chosen_by_their_number(tmp_path):
    rows = read(tmp_path, CONLL_2003, label_column="3")[:]
    assert rows[0] == ("The dog runs .", "I-NP I-NP I-VP O")
    assert read(tmp_path, CONLL_2003, text_column="2", label_column="1")[1] == ("# NNP", "# Lena")


def test_columns_between_tabs_have_comments_and_words_with_blanks(tmp_path):
    rows = read(tmp_path, GERM_EVAL, text_column="2", label_column="3")[:]
    assert rows == [("Lena läuft", "B-PER O"), ("New_York", "B-LOC")]


def test_comments_with_as_many_columns_as_words_are_left_out(tmp_path):
    rows = read(tmp_path, MULTI_CONER)[:]
    assert rows == [("Lena runs", "B-PER O"), ("# 5", "O O")]


def test_words_of_conll_u_are_the_words_of_the_sentence(tmp_path):
    rows = read(tmp_path, CONLL_U, text_column="2", label_column="4")[:]
    assert rows == [("In dem Haus", "ADP DET NOUN")]


@pytest.mark.parametrize(
    ("content", "fields", "message"),
    [
        ("a O\nb\n", {}, r"Line 2 of .*train\.conll must have 2 columns, as line 1 has, but it has 1\."),
        ("a\nb\n", {}, r"Line 1 of .*train\.conll has 1 columns, but column 2 is needed"),
        ("a X O\n", {"label_column": "4"}, r"Line 1 .* has 3 columns, but column 4 is needed"),
        ("a O\n", {"label_column": "ner"}, r"data\.label_column to be the number of a column.*'ner'"),
        ("a O\n", {"label_column": "0"}, r"data\.label_column to be the number of a column.*'0'"),
        ("a O\n", {"second_column": "2"}, r"data\.second_column is '2'"),
        ("a\tO\nb\t\n", {}, r"Line 2 of .* has no tag for the word 'b'"),
        ("-DOCSTART- O\n\n", {}, r"train\.conll has no words"),
    ],
)
def test_columns_that_do_not_fit_are_an_error(content, fields, message, tmp_path):
    with pytest.raises(UserError, match=message):
        read(tmp_path, content, **fields)[:]


def test_columns_need_a_model_of_tags():
    model = dataclasses.replace(BERT, head="classes")
    with pytest.raises(UserError, match=r"data\.kind=conll.*model\.head is 'classes'"):
        classification.Config(model=model, data=LabelledConfig(kind="conll", max_length=32))


WORDS, TAGS = [["The", "dog"], ["New York", ""]], [["O", "B-ORG"], ["B-LOC", "O"]]
ROWS = [("The dog", "O B-ORG"), ("New_York _", "B-LOC O")]
FIELDS = {"text_column": "tokens", "label_column": "ner_tags"}


@pytest.mark.parametrize("form", ["jsonl", "parquet", "huggingface"])
@pytest.mark.parametrize("kind", ["texts", "integers", "classes"])
def test_lists_of_words_and_of_tags_are_read(form, kind, tmp_path):
    datasets = pytest.importorskip("datasets")
    names = ["O", "B-ORG", "B-LOC"]
    tags = TAGS if kind == "texts" else [[names.index(tag) for tag in row] for row in TAGS]
    expected = ROWS
    if kind == "integers" or (kind == "classes" and form == "jsonl"):
        expected = [(text, " ".join(map(str, row))) for (text, _), row in zip(ROWS, tags, strict=True)]
    rows = [{"tokens": words, "ner_tags": row} for words, row in zip(WORDS, tags, strict=True)]
    feature = {
        "texts": datasets.Value("string"),
        "integers": datasets.Value("int64"),
        "classes": datasets.ClassLabel(names=names),
    }[kind]
    features = datasets.Features(
        {"tokens": datasets.List(datasets.Value("string")), "ner_tags": datasets.List(feature)}
    )
    data = datasets.Dataset.from_list(rows, features=features)
    config = LabelledConfig(directory=str(tmp_path), train=f"train.{form}", **FIELDS)
    if form == "jsonl":
        (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif form == "parquet":
        data.to_parquet(tmp_path / "train.parquet")
    else:
        datasets.DatasetDict(train=data).save_to_disk(tmp_path / "saved")
        config = LabelledConfig(kind="huggingface", directory=str(tmp_path / "saved"), **FIELDS)
    assert open_pairs(config, "train")[:] == expected


@pytest.mark.parametrize(
    "feature",
    [
        {"feature": {"names": ["O", "X"], "_type": "ClassLabel"}, "_type": "Sequence"},
        [{"names": ["O", "X"], "_type": "ClassLabel"}],
    ],
)
def test_older_versions_of_datasets_write_the_features_of_lists_otherwise(feature, tmp_path):
    table = pyarrow.table({"tokens": [["a", "b"]], "ner_tags": [[0, 1]]})
    metadata = json.dumps({"info": {"features": {"ner_tags": feature}}})
    table = table.replace_schema_metadata({b"huggingface": metadata.encode()})
    pyarrow.parquet.write_table(table, tmp_path / "train.parquet")
    config = LabelledConfig(directory=str(tmp_path), train="train.parquet", **FIELDS)
    assert open_pairs(config, "train")[:] == [("a b", "O X")]


def test_tags_that_do_not_fit_their_words_are_an_error_with_the_line(tmp_path):
    rows = [
        {"tokens": ["the", "dog"], "ner_tags": ["O", "B-X"]},
        {"tokens": ["the", "cat"], "ner_tags": ["O"]},
    ]
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    splits = {split: f"{split}.jsonl" for split in ("train", "validation", "test")}
    model = dataclasses.replace(BERT, head="tags")
    with pytest.raises(UserError, match=r"2 words of line 2 of .*train\.jsonl, 'the cat', got 1 tags: 'O'"):
        classification.create(
            make_config(tmp_path, model, **splits, **FIELDS, vocabulary_size=270), str(tmp_path)
        )


def test_lists_are_no_texts_of_pairs(tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps({"a": ["x"], "b": "y", "label": 1}) + "\n")
    config = LabelledConfig(directory=str(tmp_path), train="train.jsonl", text_column="a", second_column="b")
    with pytest.raises(UserError, match=r"Line 1 .* expected text in the column 'a', got list"):
        open_pairs(config, "train")[:]
