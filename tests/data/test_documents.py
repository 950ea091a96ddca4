"""Tests of documents from text files, TFDS and the standard library."""

import dataclasses
import os
import resource
import tracemalloc

import pytest

from tests.support import tfds_sets
from tfm.data.config import DocumentsConfig
from tfm.data.sources.opening import check_splits, open_documents
from tfm.errors import UserError
from tfm.training.assets import sample_bytes

TEXT = "one\ntwo\n\n\nthree \n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train").write_text(TEXT, encoding="utf-8")
    (tmp_path / "validation").write_text("four", encoding="utf-8")
    return tmp_path


def make(folder, **fields):
    return DocumentsConfig(directory=str(folder), cache_dir=str(folder / "cache"), **fields)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("file", [TEXT]),
        ("paragraph", ["one\ntwo", "three "]),
        ("line", ["one", "two", "three "]),
        ("each_line", ["one", "two", "", "", "three "]),
    ],
)
def test_documents_are_files_paragraphs_or_lines(folder, kind, expected):
    documents = open_documents(make(folder, documents=kind), "train")
    assert documents[: len(documents)] == [(text,) for text in expected]
    assert documents[0] == (expected[0],)


@pytest.mark.parametrize("separator", ["<|end|>", "\n--\n", "x"])
def test_separator_may_stand_at_the_edge_of_a_block(separator, tmp_path, monkeypatch):
    monkeypatch.setattr("tfm.data.sources.text_files.BLOCK_BYTES", 4)
    texts = ["one\ntwo", "three", "a\n\nb", "é"]
    (tmp_path / "train").write_text(separator.join([texts[0], *texts]) + separator, encoding="utf-8")
    documents = open_documents(make(tmp_path, separator=separator), "train")
    assert documents[:] == [(text,) for text in [texts[0], *texts]]


@pytest.mark.parametrize("fields", [{"documents": "line"}, {"documents": "paragraph"}, {"separator": "###"}])
def test_documents_of_a_large_file_are_not_in_memory_together(fields, tmp_path, monkeypatch):
    monkeypatch.setattr("tfm.data.sources.text_files.BLOCK_BYTES", 1 << 14)
    with open(tmp_path / "train", "w") as file:
        file.writelines("a few words of text in a line\n" * 99 + "###\n\n" for _ in range(1000))
    size = (tmp_path / "train").stat().st_size
    tracemalloc.start()
    try:
        assert sum(1 for _ in open_documents(make(tmp_path, **fields), "train")) >= 1000
        assert tracemalloc.get_traced_memory()[1] < size / 2
    finally:
        tracemalloc.stop()


def test_large_file_that_is_one_document_is_a_warning(folder, monkeypatch, caplog):
    monkeypatch.setattr("tfm.data.sources.documents.LARGE_DOCUMENT_BYTES", len(TEXT) - 1)
    open_documents(make(folder, documents="line"), "train")
    assert not caplog.records
    open_documents(make(folder), "train")
    assert "train (0 MB) is read as a single document" in caplog.text


def test_line_that_is_longer_than_any_document_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("tfm.data.sources.documents.MAX_LINE_BYTES", 100)
    (tmp_path / "train").write_text("one\ntwo\n" + 101 * "x")
    with pytest.raises(UserError, match=r"Line 3 of .*train has more than 100 bytes"):
        check_splits(make(tmp_path, documents="line"), ("train",))


@pytest.mark.parametrize(
    ("most", "expected"), [(12, ["aaaa", "bb", "é", "cccc"]), (6, ["aaaa", "cc"]), (3, ["aaa"]), (1, ["a"])]
)
def test_sample_of_bytes_is_spread_evenly(most, expected):
    assert list(sample_bytes(["aaaa", "bb", "é", "cccc"], most)) == expected


def test_fingerprint_depends_on_the_ends_of_documents(tmp_path):
    for name, text in (("train", "a\nbc"), ("validation", "ab\nc")):
        (tmp_path / name).write_text(text)
    config = make(tmp_path, documents="line")
    assert open_documents(config, "train").fingerprint != open_documents(config, "validation").fingerprint


@pytest.mark.long
def test_documents_are_a_feature_of_a_tfds_set(tmp_path):
    name = tfds_sets.TinyTranslate.name
    config = DocumentsConfig(kind="tfds", name=name, feature="en", directory=str(tmp_path))
    documents = open_documents(config, "train")
    assert sorted(documents[:6]) == [(f"sentence {i}",) for i in range(6)]
    with pytest.raises(UserError, match="has no feature 'text'"):
        open_documents(dataclasses.replace(config, feature="text"), "train")


def test_builtin_documents_have_three_splits():
    config = DocumentsConfig(kind="builtin", name="pydoc_topics")
    assert len(open_documents(config, "train")) > len(open_documents(config, "test")) > 3
    with pytest.raises(UserError, match=r"test, validation, train, got 'long'"):
        open_documents(config, "long")


def test_reading_a_document_reserves_no_more_than_its_size(folder):
    tracemalloc.start()
    try:
        assert len(open_documents(make(folder), "train")) == 1
        assert tracemalloc.get_traced_memory()[1] < 1 << 26
    finally:
        tracemalloc.stop()


def test_nul_bytes_are_an_error_and_empty_files_are_skipped(folder):
    (folder / "part-1").write_bytes(b"")
    (folder / "part-2").write_text("two")
    assert open_documents(make(folder, train="part-*"), "train")[:] == [("two",)]
    (folder / "part-1").write_bytes(bytes(100))
    with pytest.raises(UserError, match=r"part-1 .*NUL"):
        check_splits(make(folder, train="part-*"))


def test_damaged_test_split_is_an_error(folder):
    check_splits(make(folder))
    (folder / "test").write_bytes(b"a\xff")
    with pytest.raises(UserError, match="test is not UTF-8"):
        check_splits(make(folder))


def test_one_error_lists_all_problems(tmp_path):
    (tmp_path / "train").write_bytes(b"a\xff")
    with pytest.raises(UserError, match=r"2 problems.*not UTF-8.*Expected the file .*validation"):
        check_splits(make(tmp_path))
    (tmp_path / "train").write_bytes(b" \n")
    with pytest.raises(UserError, match="'train' of the data has no text"):
        check_splits(make(tmp_path), ("train",))
    with pytest.raises(UserError, match=r"data\.test is empty"):
        open_documents(make(tmp_path, test=""), "test")


@pytest.mark.parametrize(
    ("fields", "damaged", "message"),
    [
        ({"kind": "table", "format": "jsonl"}, b'{"text": "one"}\nno json\n', "Line 2 of .*late"),
        ({"documents": "line"}, b"one\ntwo \xff\n", "Line 2 of .*late is not UTF-8"),
    ],
)
def test_check_reads_every_document(tmp_path, fields, damaged, message):
    """The first document alone would show only that the split has text."""
    for split in ("train", "validation", "good"):
        (tmp_path / split).write_bytes(damaged.splitlines(keepends=True)[0])
    (tmp_path / "late").write_bytes(damaged)
    with pytest.raises(UserError, match=message):
        check_splits(make(tmp_path, test="good,late", **fields))


def test_a_split_may_have_more_files_than_a_process_may_open(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowered = len(os.listdir("/dev/fd")) + 20
    for number in range(40):
        (tmp_path / f"part-{number:02}").write_text(f"document {number}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowered, hard))
    try:
        documents = open_documents(make(tmp_path, train="part-*"), "train")
        assert documents[:] == [(f"document {number}",) for number in range(40)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch_tokens": 100}, r"data\.batch_tokens .*1,024.* 100"),
        ({"kind": "builtin"}, r"data\.name must be one of .*pydoc_topics"),
        ({"kind": "tfds"}, r"data\.name must be a name such as .* lm1b for data\.kind=tfds, got ''"),
        ({"tokenizer": "words"}, r"data\.tokenizer .*word_pieces.*words"),
        ({"kind": "tfds", "name": "huggingface:x"}, r"data\.name must be a name"),
    ],
)
def test_invalid_fields_are_errors(fields, message):
    with pytest.raises(UserError, match=message):
        DocumentsConfig(**fields)


def test_summary_names_the_folder_of_a_tokenizer():
    assert DocumentsConfig(tokenizer="tokenizers/gpt2/").summary.endswith(", as gpt2")
