"""Tests of articles with summaries: their forms, the cutting of long articles, and their statistics."""

import json
import logging
import types

import pytest

from tests.support.corpora import write_jsonl
from tfm.data.data_errors import MissingFile
from tfm.data.source import hold
from tfm.data.sources.opening import check_splits, open_documents
from tfm.data.tokenizers.characters import Characters
from tfm.errors import UserError
from tfm.systems.t_dmca.summaries import SummariesConfig, cut_article, cut_articles, inspect_split

ARTICLES = [("One cat. Two\ndogs.", "Animals."), ("A bridge.", "Repair?")]
DOCUMENTS = [("One cat. Two dogs. Summary: Animals.",), ("A bridge. Summary: Repair?",)]


class Words:
    """A tokenizer whose tokens are words."""

    fingerprint = "words"

    def encode(self, texts):
        return [text.split() for text in texts]

    def decode(self, ids):
        return " ".join(ids)


def make(folder, **fields):
    names = {"directory": str(folder), "train": "train", "validation": "train", "test": ""}
    return SummariesConfig(**names | {"kind": "table", "feature": "en", "summary_column": "de"} | fields)


def write_rows(folder, *rows):
    lines = [json.dumps({"document": article, "summary": summary}) for article, summary in rows]
    (folder / "train.jsonl").write_text("\n".join(lines))
    return make(folder, feature="document", summary_column="summary")


def test_two_columns_and_two_files_give_the_same_documents(tmp_path):
    write_jsonl(tmp_path / "train.jsonl", ARTICLES)
    for index, ending in enumerate(("source", "target")):
        lines = [pair[index].replace("\n", " ") for pair in ARTICLES]
        (tmp_path / f"train.{ending}").write_text("\n".join(lines))
    files = make(tmp_path, kind="text", feature="source", summary_column="target")
    for config in (make(tmp_path), files):
        check_splits(config)
        assert open_documents(config, "train")[:] == DOCUMENTS


def test_fingerprint_depends_on_the_text_before_a_summary(tmp_path):
    write_jsonl(tmp_path / "train.jsonl", ARTICLES)
    sources = [open_documents(make(tmp_path, before_summary=text), "train") for text in (" = ", " : ")]
    assert sources[0][0] == ("One cat. Two dogs. = Animals.",)
    assert sources[0].fingerprint != sources[1].fingerprint


@pytest.mark.parametrize(
    "article",
    [
        ["a b", "c d", None],
        "a b ||||| c d |||||",
        "a b story_separator_special_tag c d",
        "a b NEWLINE_CHAR c d",
    ],
)
def test_source_documents_are_joined_in_their_order(tmp_path, article):
    assert open_documents(write_rows(tmp_path, (article, "x")), "train")[:] == [("a b c d Summary: x",)]


def test_lists_of_documents_are_read_from_parquet_and_data_sets(tmp_path):
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    rows = datasets.Dataset.from_dict({"document": [["a", "b"], []], "summary": ["x", "y"]})
    rows.to_parquet(tmp_path / "train.parquet")
    rows.save_to_disk(tmp_path / "saved" / "train")
    columns = {"feature": "document", "summary_column": "summary"}
    for config in (make(tmp_path, **columns), make(tmp_path / "saved", kind="huggingface", **columns)):
        assert open_documents(config, "train")[:] == [("a b Summary: x",)]


def test_rows_without_an_article_or_a_summary_are_left_out_with_their_number(tmp_path, caplog):
    config = write_rows(tmp_path, ("", "x"), ("a", "y"), ("b", None))
    with caplog.at_level(logging.WARNING):
        check_splits(config)
    assert open_documents(config, "train")[:] == [("a Summary: y",)]
    assert "Left out 2 of 3 rows of the split 'train'" in caplog.text


@pytest.mark.parametrize(
    ("rows", "fields", "message"),
    [
        ([("a", "b Summary: c")], {}, "summary of row 1 .*' Summary: '.* data.before_summary"),
        (
            [("a", "b")],
            {"summary_column": "highlights"},
            "has no column 'highlights', but 'document', 'summary'",
        ),
        ([("a", "")], {}, "'train' of the data has no text"),
        ([("a", ["b"])], {}, "Line 1 of .*expected text in the column 'summary', got list"),
        ([("a", "b")], {"summary_column": "document"}, "are both 'document'"),
    ],
)
def test_unusable_summaries_are_an_error(tmp_path, rows, fields, message):
    write_rows(tmp_path, *rows)
    columns = {"feature": "document", "summary_column": "summary"}
    with pytest.raises(UserError, match=message):
        check_splits(make(tmp_path, **columns | fields))


def test_functions_return_whole_documents():
    with pytest.raises(UserError, match=r"data\.summary_column needs data\.kind=text, table"):
        SummariesConfig(kind="package.module:function", summary_column="summary")


def test_long_article_loses_its_last_tokens_and_no_more():
    cut = cut_article("a b c d e f", " = x y", Words(), 7)
    assert cut == ("a b c = x y", 7)
    assert cut_article("a b", " = x y", Words(), 7) == ("a b = x y", 6)
    assert cut_article("a b", " = x y z", Words(), 3) == (" = x y z", 5)


def test_cut_documents_fit_and_are_counted(caplog):
    documents = hold([("a b c d e = x",), ("a = x y",)], "two")
    config = SummariesConfig(before_summary=" = ", row_length=5, batch_tokens=5)
    cut = cut_articles(documents, Words(), config, "train")
    with caplog.at_level(logging.WARNING):
        assert list(cut) == list(cut) == [("a b = x",), ("a = x y",)]
    assert len(caplog.records) == 1
    assert "Cut 1 of 2 articles of the split 'train'" in caplog.text
    assert cut.fingerprint != documents.fingerprint


def test_article_is_cut_between_characters():
    tokenizer = Characters()  # of bytes
    text, tokens = cut_article("ä" * 9, " = ä", tokenizer, 10)
    assert tokens <= 10
    assert text.startswith("ä")
    assert text.endswith(" = ä")


def test_statistics_show_lengths_compression_and_exchanged_columns(tmp_path):
    config = write_rows(tmp_path, ("The cat sat on the mat", "A cat"), ("one two", "One two three"))
    summary = inspect_split(types.SimpleNamespace(data=config), "train")
    assert summary.title == "2 articles with summaries"
    assert summary.values["article_words"] == {"mean": 4, "median": 4, "p95": 6, "longest": 6}
    assert summary.values["compression"] == 8 / 5
    assert summary.values["new_words"] == pytest.approx((1 / 2 + 1 / 3) / 2, abs=1e-4)
    assert len(summary.hashes) == 2
    assert "1 articles are shorter than their summaries" in summary.hints[0]
    with pytest.raises(MissingFile):
        inspect_split(types.SimpleNamespace(data=make(tmp_path, test="test")), "test")
