"""Tests of the checks of all data before a run starts. One error lists every problem."""

import dataclasses
import gzip
import logging
import os
import pathlib
import stat
import unittest.mock

import pytest
import sentencepiece

from tests.support.corpora import text_config, write
from tests.support.io_conditions import open_folder, unreadable, unwritable
from tests.support.pairs import Letters, random_pairs
from tests.support.tiny import make_config, write_corpus
from tfm.data import token_cache
from tfm.data.config import PairsConfig
from tfm.data.data_errors import MissingFile
from tfm.data.sources import opening as sources
from tfm.data.sources import text_files
from tfm.data.sources.parallel_text import open_parallel_text
from tfm.data.sources.splits import list_splits
from tfm.data.token_cache import TokenCache
from tfm.data.tokenizers.learning import MAX_TEXT_BYTES
from tfm.errors import UserError
from tfm.tasks import translation

GOOD = b"one\ntwo\n"


def check(folder, **fields):
    """Returns the error message of the check, or "". The validation split is the training split."""
    try:
        sources.check_splits(text_config(folder, **{"validation": "train"} | fields))
    except UserError as error:
        return str(error)
    return ""


# {name: (content of train.en, error message)}
CONTENTS = {
    "empty": (b"", "train.en is empty"),
    "only a mark": (b"\xef\xbb\xbf", "train.en has 1 lines and .*train.de has 2"),
    "blank lines": (b"\n \n", "'train' .*both sides"),
    "CR": (b"one\rtwo\r", "train.en .* CR"),
    "CR and a line feed": (b"one\rtwo\rthree\n", "train.en .* CR"),
    "UTF-16": ("one\ntwo\n".encode("utf-16"), "train.en .*NUL.* UTF-16"),
    "UTF-16 without a mark": ("one\ntwo\n".encode("utf-16-le"), "NUL"),
    "zeros": (bytes(1000), "NUL"),
    "Latin-1": ("fine\nMünchen\n".encode("latin-1"), "Line 2 of .*train.en is not UTF-8"),
    "bytes": (bytes(range(128, 256)) + b"\nx\n", "Line 1 of .*train.en is not UTF-8"),
    "SGML": (
        b'<srcset setid="newstest2014" srclang="any">\n<seg id="1">One.</seg>\n',
        r"train\.en is SGML .*\.sgm",
    ),
    "TMX": (b'\xef\xbb\xbf<?xml version="1.0"?>\n<tmx version="1.4">\n', r"train\.en is SGML or XML"),
    "gzip": (gzip.compress(GOOD), r"train\.en .*\.gz"),
    "zip": (b"PK\x03\x04" + bytes(100), r"train\.en is a zip archive: unpack it"),
    "long lines": (b"ab " * 30_000 + b"\n" + b"ab " * 30_000 + b"\n", "at most 65,536 bytes"),
    "very long line": (b"x\n" + b"ab " * 400_000, "Line 2 of .*train.en has more than 1,048,576 bytes"),
}


def test_checked_file_can_be_read(tmp_path):
    """Both look for characters of other formats in the same part of the file."""
    (tmp_path / "text").write_bytes(b"a dog\n" * 90_000 + b"\0" * 100_000 + b"\n")
    file = text_files.TextFile(str(tmp_path / "text"))
    assert file.check() == sum(1 for _ in file)


def test_file_compressed_in_another_form_than_its_ending_is_an_error(tmp_path):
    (tmp_path / "text.xz").write_bytes(gzip.compress(GOOD))
    with pytest.raises(UserError, match=r"text\.xz has the content of a \.gz file\. Rename it"):
        text_files.TextFile(str(tmp_path / "text.xz")).check()


def test_ending_in_capitals_is_that_of_a_compressed_file(tmp_path):
    for language in ("en", "de"):
        (tmp_path / f"train.{language}.GZ").write_bytes(gzip.compress(GOOD))
    assert check(tmp_path) == ""


# {name: (function that creates something at the path, error message)}
NOT_A_FILE = {
    "a folder": (os.mkdir, r"train\.en, got a folder"),
    "a pipe": (os.mkfifo, "pipe"),
    "a device": (lambda path: os.symlink(os.devnull, path), "device"),
    "a broken link": (lambda path: os.symlink("gone", path), "broken link"),
    "a link to itself": (lambda path: os.symlink("train.en", path), "Too many levels of symbolic links"),
    "no file": (lambda path: None, "train.en .*but there is none"),
}


@pytest.mark.parametrize("name", CONTENTS | NOT_A_FILE)
def test_unreadable_text_file_is_an_error(tmp_path, name):
    made, message = (CONTENTS | NOT_A_FILE)[name]
    (tmp_path / "train.de").write_bytes(GOOD)
    if callable(made):
        made(tmp_path / "train.en")
    else:
        (tmp_path / "train.en").write_bytes(made)
    with pytest.raises(UserError, match=message):
        sources.check_splits(text_config(tmp_path, validation="train"))


@pytest.mark.parametrize(
    "content",
    [
        *(GOOD, b"one\r\ntwo\r\n", b"one\r\r\ntwo\r\r\n", b"one\n\n", b"a\rb\ntwo", b"one\ntwo\r"),
        *(b"\xef\xbb\xbfone\ntwo", b"a\0b\ntwo\n", "\u2028\x85ä\n\n".encode(), b"x\n" + b"ab " * 30_000),
    ],
)
def test_unusual_but_valid_text_is_accepted(tmp_path, content):
    write(tmp_path, content, GOOD)
    assert check(tmp_path) == ""


@pytest.mark.parametrize("bad", [0, 1, 17, 49])
def test_error_has_the_number_of_the_first_bad_line_in_any_chunk(tmp_path, monkeypatch, bad):
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 7)
    texts = [f"line {i} ä".encode() for i in range(50)]
    texts[bad] = texts[-1] = b"bad \xe4 line"
    write(tmp_path, b"\n".join(texts), b"x\n" * 50)
    assert f"Line {bad + 1} of" in check(tmp_path)


def test_error_lists_every_problem_of_every_split(tmp_path):
    write(tmp_path, b"a\nb\nc\n", b"a\n")
    write(tmp_path, b"bad \xff\n", b"", stem="val")
    answer = check(tmp_path, validation="val", test="tset")
    assert answer.startswith("There are 5 problems with the data. (1) ")
    for problem in ("3 lines", "Line 1 of", "val.de is empty", "tset.en", "tset.de"):
        assert problem in answer


def test_default_test_split_may_be_absent(tmp_path):
    """A test split is required only if the user sets its name or one of its files exists."""
    write(tmp_path, GOOD, GOOD)
    assert check(tmp_path) == check(tmp_path, test="") == ""
    assert "tset.en" in check(tmp_path, test="tset")
    assert "test.en" in check(tmp_path, validation="test")  # the validation split is required
    (tmp_path / "test.en").write_bytes(GOOD)
    assert "test.de" in check(tmp_path)
    assert "test.de" not in check(tmp_path, test="")
    assert "data.validation is empty" in check(tmp_path, validation="")
    with pytest.raises(UserError, match=r"data\.test is empty"):
        sources.read_sides(text_config(tmp_path, test=""), "test")
    (tmp_path / "test.en").unlink()
    with pytest.raises(UserError, match=r"test\.en"):
        sources.read_sides(text_config(tmp_path), "test")


def test_source_and_target_must_be_different_files(tmp_path):
    write(tmp_path, GOOD, GOOD)
    assert "both 'en'" in check(tmp_path, target_language="en")
    (tmp_path / "train.fr").symlink_to("train.en")
    assert "are the same file" in check(tmp_path, target_language="fr")


@pytest.mark.parametrize("size", [MAX_TEXT_BYTES, MAX_TEXT_BYTES + 1])
def test_at_least_one_pair_must_fit_the_tokenizer(tmp_path, size):
    write(tmp_path, b"a" * size + b"\n\n", GOOD)
    assert (f"at most {MAX_TEXT_BYTES:,} bytes" in check(tmp_path)) == (size > MAX_TEXT_BYTES)


def test_missing_folder_is_reported_once(tmp_path):
    assert check(tmp_path, directory=str(tmp_path / "no")).count(str(tmp_path / "no")) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="changes the user")
def test_files_and_folders_without_read_permission_are_errors():
    with open_folder() as folder:
        folder = pathlib.Path(folder)
        closed = folder / "closed"
        closed.mkdir()
        for place in (folder, closed):
            write(place, GOOD, GOOD)
        os.chmod(folder / "train.en", stat.S_IWUSR)
        os.chmod(closed, stat.S_IRUSR)
        with unwritable(folder):
            answers = [check(folder), check(folder, directory="", train=str(closed / "train"))]
    assert all("Permission denied" in answer for answer in answers), answers


@pytest.mark.parametrize("pattern", ["*/train", "**/train", "a*/*/train"])
def test_pattern_that_searches_a_folder_without_read_permission_is_an_error(pattern):
    """Otherwise the files of this folder would be left out silently."""
    with open_folder() as folder:
        folder = pathlib.Path(folder)
        write(folder, GOOD, GOOD)
        for name in ("a", "b", "ab", "a/c"):
            (folder / name).mkdir()
            write(folder / name, GOOD, GOOD)
        assert not check(folder, train=pattern)
        with unreadable(folder / "ab"):
            answer = check(folder, train=pattern)
    assert f"{folder / 'ab'}" in answer
    assert "Permission denied" in answer


@pytest.mark.parametrize("field", ["directory", "train", "cache_dir"])
def test_names_with_null_bytes_are_errors(tmp_path, field):
    write(tmp_path, GOOD, GOOD)
    assert "must be text without null bytes" in check(tmp_path, **{field: "a\0b"})


def append(path):
    with open(path, "ab") as file:
        file.write(b"more\n")


def overwrite(path):
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(0, 0))  # the clock of a file system may not advance between two writes


def replace(path):
    path.with_name("new").write_bytes(path.read_bytes())
    path.with_name("new").rename(path)


@pytest.mark.parametrize("change", [append, overwrite, replace, lambda path: os.truncate(path, 0)])
def test_file_that_changes_during_reading_is_an_error(tmp_path, change):
    """Otherwise the cache would store the new tokens under the fingerprint of the old content."""
    write(tmp_path, GOOD, GOOD)
    pairs = open_parallel_text(str(tmp_path), "train", ("en", "de"))
    assert pairs.fingerprint
    change(tmp_path / "train.en")
    with pytest.raises(UserError, match=r"train\.en changed while it was read"):
        TokenCache.open(pairs, Letters(), str(tmp_path))
    assert list((tmp_path / "tokens").iterdir()) == []


def test_cache_folder_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"Cannot write .*Not a directory"):
        token_cache.check_folder(str(tmp_path / "file"))
    write_corpus(tmp_path)
    config = make_config(tmp_path)
    config = dataclasses.replace(
        config, data=dataclasses.replace(config.data, cache_dir=str(tmp_path / "file"))
    )
    with (
        unittest.mock.patch.object(sentencepiece.SentencePieceTrainer, "train", None),
        pytest.raises(UserError, match=r"Cannot write .*Not a directory"),
    ):
        translation.create(config, str(tmp_path))


def test_read_only_cache_is_used_if_it_has_the_tokens(caplog):
    with open_folder() as folder:
        os.chmod(folder, 0o755)
        TokenCache.open(random_pairs(5), Letters(), folder)
        tokens = os.path.join(folder, "tokens")
        with unwritable(tokens), caplog.at_level(logging.WARNING, "tfm"):
            token_cache.check_folder(folder)
            assert len(TokenCache.open(random_pairs(5), Letters(), folder)) == 5
    assert f"Cannot write {tokens}" in caplog.text


def test_data_are_checked_before_a_tokenizer_is_learned(tmp_path, monkeypatch):
    write_corpus(tmp_path)
    config = make_config(tmp_path)
    monkeypatch.setattr(sentencepiece.SentencePieceTrainer, "train", None)
    for split in ("val", "test"):
        (tmp_path / f"{split}.de").rename(tmp_path / f"{split}.other")
    with pytest.raises(UserError, match=r"There are 2 problems.*val\.de.*test\.de"):
        translation.create(config, str(tmp_path / "run"))


def test_resumed_run_needs_no_test_split(tmp_path, caplog):
    write_corpus(tmp_path)
    config = make_config(tmp_path)
    (tmp_path / "run").mkdir()
    translation.create(config, str(tmp_path / "run"))
    (tmp_path / "test.de").unlink()
    with caplog.at_level(logging.WARNING, "tfm"):
        translation.create(config, str(tmp_path / "run"))
    assert str(tmp_path / "test.de") in caplog.text
    (tmp_path / "val.de").unlink()
    with pytest.raises(UserError, match=r"val\.de"):
        translation.create(config, str(tmp_path / "run"))


@pytest.mark.parametrize(
    ("error", "name", "splits"),
    [
        (MissingFile("missing"), "test", ["train", "validation"]),
        (MissingFile("missing"), "mine", ["train", "validation", "test"]),
        (UserError("damaged"), "test", ["train", "validation", "test"]),
    ],
)
def test_only_a_missing_test_split_of_the_default_name_is_left_out(error, name, splits):
    def fail(config, split):
        raise error

    assert list_splits(PairsConfig(test=name), fail) == splits
