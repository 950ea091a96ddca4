"""Tests of texts, tables and Parquet in a store, on folders with the protocol file://."""

import dataclasses
import os

import pyarrow
import pyarrow.parquet
import pytest

from tests.support.tiny import make_config, write_corpus
from tfm.data.config import DocumentsConfig, ImagesConfig, PairsConfig
from tfm.data.sources.opening import check_splits, open_pairs
from tfm.data.token_cache import check_folder
from tfm.errors import UserError
from tfm.io import remote
from tfm.io.local_copies import show
from tfm.io.remote import list_locally
from tfm.systems.dalle.captions import CaptionsConfig
from tfm.systems.detr.batches import BoxedPicturesConfig
from tfm.systems.memory_network.stories import StoriesConfig
from tfm.systems.word2vec.skip_grams import SkipGramsConfig

ROWS = {"en": ["red dog", "big cat", "blue bird"], "de": ["roter Hund", "große Katze", "blauer Vogel"]}


def write_table(folder, ending):
    table = pyarrow.table(ROWS)
    if ending == "parquet":
        pyarrow.parquet.write_table(table, folder / "train.parquet")
    else:
        lines = ["\t".join(row) for row in [("en", "de"), *zip(*ROWS.values(), strict=True)]]
        (folder / "train.tsv").write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("ending", ["tsv", "parquet"])
def test_tables_are_read_from_a_store(ending, tmp_path):
    write_table(tmp_path, ending)
    data = make_config(tmp_path).data
    here = dataclasses.replace(data, kind="table", train=f"train.{ending}", directory=str(tmp_path))
    there = dataclasses.replace(here, directory=f"file://{tmp_path}")
    sources = [open_pairs(config, "train") for config in (there, here)]
    assert [row[:2] for row in sources[0]] == list(zip(*ROWS.values(), strict=True))
    assert len({source.fingerprint for source in sources}) == 1


def test_texts_are_read_from_a_store_without_a_copy(tmp_path):
    write_corpus(tmp_path)
    data = make_config(tmp_path).data
    there = dataclasses.replace(data, directory=f"file://{tmp_path}")
    check_splits(there)
    assert list(open_pairs(there, "train")) == list(open_pairs(data, "train"))
    folder = list_locally(there.directory)
    sizes = [os.stat(os.path.join(folder, name)) for name in os.listdir(folder) if name.endswith(".de")]
    assert sizes
    assert all(each.st_blocks == 0 for each in sizes)


def test_large_file_is_read_by_ranges(tmp_path, monkeypatch):
    lines = [f"line {number} of a text" for number in range(200_000)]
    for language in ("en", "de"):
        (tmp_path / f"train.{language}").write_text("".join(f"{line}\n" for line in lines))
    ranges = []
    read = remote.RemoteFolder.read_range

    def record(self, name, start, end):
        ranges.append(end - start)
        return read(self, name, start, end)

    monkeypatch.setattr(remote.RemoteFolder, "read_range", record)
    data = dataclasses.replace(make_config(tmp_path).data, directory=f"file://{tmp_path}")
    pairs = iter(open_pairs(data, "train"))
    assert next(pairs)[0] == lines[0]
    assert 0 < max(ranges) <= 1 << 20
    assert [source for source, *_ in pairs] == lines[1:]


def test_missing_file_in_a_store_is_named_by_its_url(tmp_path):
    (tmp_path / "other").write_text("x")
    data = dataclasses.replace(make_config(tmp_path).data, directory=f"file://{tmp_path}")
    with pytest.raises(UserError) as error:
        check_splits(data)
    assert f"file://{tmp_path}/train.en" in show(str(error.value))


def test_token_cache_in_a_store_is_an_error():
    with pytest.raises(UserError, match=r"data\.cache_dir .*'gs://bucket/cache'"):
        check_folder("gs://bucket/cache")


@pytest.mark.parametrize(
    ("section", "kind"),
    [
        (PairsConfig, "huggingface"),
        (DocumentsConfig, "tfds"),
        (ImagesConfig, "folder"),
        (ImagesConfig, "table"),
        (SkipGramsConfig, "text"),
        (BoxedPicturesConfig, "coco"),
        (CaptionsConfig, "txt"),
        (StoriesConfig, "babi"),
    ],
)
def test_url_of_data_that_are_not_read_from_a_store_is_an_error(section, kind):
    """Libraries ended in a traceback, and pictures were missing in a folder gs:/bucket/data."""
    with pytest.raises(UserError, match=f"data.kind={kind}.*gs://bucket/data. Copy the data to this machine"):
        section(kind=kind, directory="gs://bucket/data")


def test_error_about_a_url_does_not_repeat_its_password():
    with pytest.raises(UserError, match="without credentials") as error:
        PairsConfig(kind="huggingface", directory="s3://key:hunter2@bucket/data")
    assert "hunter2" not in str(error.value)


def test_a_function_of_the_user_may_read_a_url():
    assert PairsConfig(kind="my.data:open_pairs", directory="gs://bucket/data").directory
