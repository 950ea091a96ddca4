"""Tests of splits that are read from standard input and stored in the cache."""

import io
import os

import pytest

from tests.support.corpora import PAIRS, pairs_of, problem, table_config, write_tsv
from tfm.data.config import DocumentsConfig
from tfm.data.sources import opening as sources
from tfm.data.sources.opening import open_documents
from tfm.data.sources.standard_input import store_pipe
from tfm.errors import UserError


@pytest.fixture
def content(tmp_path):
    write_tsv(tmp_path / "train.tsv", PAIRS)
    return (tmp_path / "train.tsv").read_bytes()


class Terminal(io.BytesIO):
    def isatty(self):
        return True


def test_piped_table_is_stored_once_under_its_content(tmp_path, content):
    config = store_pipe(table_config(tmp_path, train="-"), io.BytesIO(content))
    assert problem(config) == ""
    assert pairs_of(config) == PAIRS
    file = sources.open_pairs(table_config(tmp_path), "train")
    assert sources.open_pairs(config, "train").fingerprint == file.fingerprint
    again = store_pipe(table_config(tmp_path, train="-"), io.BytesIO(content))
    assert again == config == store_pipe(config, Terminal())
    other = store_pipe(
        table_config(tmp_path, train="-", format="jsonl"), io.BytesIO(b'{"en": "a", "de": "b"}')
    )
    assert pairs_of(other) == [("a", "b")]
    changed = store_pipe(table_config(tmp_path, train="-"), io.BytesIO(content + b"six\tsechs\n"))
    assert pairs_of(changed) == [*PAIRS, ("six", "sechs")]
    assert pairs_of(config) == PAIRS
    assert len(os.listdir(tmp_path / "cache" / "pipes")) == 3  # no temporary file is left


def test_documents_are_read_from_a_stored_pipe(tmp_path, content):
    config = DocumentsConfig(kind="table", feature="de", train="-", cache_dir=str(tmp_path))
    documents = open_documents(store_pipe(config, io.BytesIO(content)), "train")
    assert documents[:] == [(b,) for _, b in PAIRS]
    with pytest.raises(UserError, match="'-' is standard input"):
        open_documents(config, "train")


def test_unusable_standard_input_is_an_error(tmp_path, content):
    config = table_config(tmp_path, train="-")
    for fields, stream, message in (
        ({}, io.BytesIO(), r"empty.* --config=WORKDIR/config\.json"),
        ({}, Terminal(content), "terminal"),
        ({"test": "-"}, io.BytesIO(content), r"data\.kind=table.*train, test"),
        ({"kind": "text"}, io.BytesIO(content), r"train of data\.kind=text"),
    ):
        with pytest.raises(UserError, match=message):
            store_pipe(table_config(tmp_path, **{"train": "-"} | fields), stream)
    assert not os.path.exists(tmp_path / "cache" / "pipes") or not os.listdir(tmp_path / "cache" / "pipes")
    assert "'-' is standard input" in problem(config)
    with pytest.raises(UserError, match="'-' is standard input"):
        sources.open_pairs(config, "train")
