"""Tests of data sets of the package `datasets`, saved on disk or loaded by name.

Most of the tests are skipped if the package is not installed (extra datasets).
"""

import sys

import pytest

from tests.support.corpora import PAIRS, pairs_of, problem, table_config, text_config, write_tsv
from tfm.data.sources import huggingface
from tfm.data.sources import opening as sources
from tfm.errors import UserError

FLAT = {"en": [a for a, _ in PAIRS], "de": [b for _, b in PAIRS], "id": list(range(len(PAIRS)))}


@pytest.fixture
def datasets():
    return pytest.importorskip("datasets", reason="needs pip install -e '.[datasets]'")


@pytest.fixture
def saved(datasets, tmp_path):
    """Returns a folder with two splits, written by save_to_disk."""
    languages = datasets.Features({"translation": datasets.Translation(languages=("de", "en"))})
    rows = [{"translation": {"de": b, "en": a}} for a, b in PAIRS]
    nested = datasets.Dataset.from_list(rows, features=languages)
    folder = tmp_path / "saved"
    datasets.DatasetDict(train=datasets.Dataset.from_dict(FLAT), validation=nested).save_to_disk(folder)
    return folder


def saved_config(folder, **fields):
    return text_config(folder, **{"kind": "huggingface"} | fields)


def test_saved_data_set_equals_a_table(saved):
    config = saved_config(saved)
    assert problem(config, "train", "validation", "test") == ""  # the default test split may be absent
    write_tsv(saved / "train.tsv", PAIRS)
    table = sources.open_pairs(table_config(saved), "train")
    for split in ("train", "validation"):
        pairs = sources.open_pairs(config, split)
        assert len(pairs) == len(table)
        assert pairs[:] == table[:] == PAIRS
        assert pairs[4:0:-2] == PAIRS[4:0:-2]
        assert pairs[3] == PAIRS[3]
    train, validation = (sources.open_pairs(config, split).fingerprint for split in ("train", "validation"))
    assert train == validation  # the fingerprint depends only on the texts


def test_each_split_may_have_its_own_folder(datasets, tmp_path):
    datasets.Dataset.from_dict(FLAT).save_to_disk(tmp_path / "train")
    assert pairs_of(saved_config(tmp_path)) == PAIRS
    reverse = saved_config(tmp_path, source_column="de", target_column="en")
    assert pairs_of(reverse) == [(b, a) for a, b in PAIRS]


def test_data_set_is_loaded_by_name_configuration_and_split(datasets, monkeypatch, tmp_path):
    """A replacement of load_dataset records its arguments, so nothing is downloaded."""
    asked = []

    def load_dataset(path, configuration, *, split):
        asked.append((path, configuration, split))
        return datasets.Dataset.from_dict(FLAT)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    for name in ("wmt/wmt14:de-en", "pairs"):
        config = saved_config(tmp_path, directory="", name=name, train="train[:5]")
        assert pairs_of(config) == PAIRS
    assert asked == [("wmt/wmt14", "de-en", "train[:5]"), ("pairs", None, "train[:5]")]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        pytest.param("train", "dev", "'dev', but train, validation", id="split"),
        pytest.param(
            "directory", "{saved}/train/no", "save_to_disk .*{saved}/train/no", id="folder of no data set"
        ),
        pytest.param("directory", "{saved}/validation", "{saved}/validation .*splits", id="split folder"),
        pytest.param("target_column", "fr", "'fr', but 'en', 'de', 'id'", id="column"),
        pytest.param("target_column", "id", "'id' of the split 'train' .* int64", id="column of numbers"),
        pytest.param("directory", "", r"'train' of no/such \(", id="name"),
    ],
)
def test_missing_split_folder_or_column_is_an_error(field, value, message, saved, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    config = saved_config(saved, **{"name": "no/such", field: value.replace("{saved}", str(saved))})
    with pytest.raises(UserError, match=message.replace("{saved}", str(saved))):
        sources.check_splits(config, ("train",))


def test_data_set_without_rows_is_an_error(datasets, tmp_path):
    empty = datasets.Dataset.from_dict(FLAT).select([])
    datasets.DatasetDict(train=empty).save_to_disk(tmp_path / "empty")
    with pytest.raises(UserError, match=f"{tmp_path}/empty"):
        sources.check_splits(saved_config(tmp_path / "empty"), ("train",))


def test_damaged_file_of_a_data_set_by_name_is_an_error_with_its_reason(datasets, tmp_path, monkeypatch):
    """Also for the test split, which may be missing but not damaged."""
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sets" / "mine").mkdir(parents=True)
    for split in ("train", "test"):
        (tmp_path / "sets" / "mine" / f"{split}.csv").write_text("en,de\na,b\nc,d,e,f\n")
    config = saved_config(tmp_path, directory="", name="sets/mine")
    for split in ("train", "test"):
        assert "line 3" in problem(config, split)


def test_error_asks_to_install_the_package(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"set data\.name or data\.directory"):
        huggingface.open_dataset("", "", "train", ("en", "de"), str.strip)
    for directory in ("", str(tmp_path)):
        with pytest.raises(UserError, match=r"pip install -e '\.\[datasets\]'"):
            huggingface.open_dataset("name", directory, "train", ("en", "de"), str.strip)


def test_text_that_is_not_utf_8_is_an_error(datasets, tmp_path):
    """Arrow itself reads such a file without an error."""
    datasets.Dataset.from_dict(FLAT).save_to_disk(tmp_path / "train")
    [path] = (tmp_path / "train").glob("*.arrow")
    content, text = path.read_bytes(), PAIRS[3][0].encode()
    assert text in content
    path.write_bytes(content.replace(text, b"\xff" * len(text), 1))
    with pytest.raises(UserError, match=r"'train'.*damaged"):
        pairs_of(saved_config(tmp_path))
