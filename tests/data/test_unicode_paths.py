"""Tests of folders and files whose names have another Unicode form on the disk than in the config.

macOS and some archives write decomposed names (NFD), and keyboards composed names (NFC).
"""

import re
import unicodedata

import numpy as np
import pytest
from PIL import Image

from tests.support.corpora import PAIRS, pairs_of, table_config, text_config, write_text, write_tsv
from tfm.data.config import ImagesConfig
from tfm.data.images import open_images, open_splits
from tfm.data.tokenizers.files import load_word_pieces
from tfm.errors import UserError
from tfm.io.files import spell_path
from tfm.systems.dalle.captions import CaptionsConfig
from tfm.systems.dalle.stored_captions import find_captions
from tfm.systems.detr.batches import BoxedPicturesConfig
from tfm.systems.detr.data import open_source
from tfm.systems.memory_network.babi import find_files
from tfm.systems.memory_network.stories import StoriesConfig

COMPOSED, DECOMPOSED = (unicodedata.normalize(form, "Übungen für Äpfel") for form in ("NFC", "NFD"))


@pytest.fixture(params=[(COMPOSED, DECOMPOSED), (DECOMPOSED, COMPOSED)], ids=["on macOS", "on Linux"])
def folders(request, tmp_path):
    """Returns a folder on the disk within another one, and the same folder with the names of the config."""
    written, stored = request.param
    (tmp_path / stored / stored).mkdir(parents=True)
    return tmp_path / stored / stored, tmp_path / written / written


def save_picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4)).save(path)


def test_text_and_tables_are_found(folders):
    stored, written = folders
    write_text(stored, PAIRS)
    write_tsv(stored / "train.tsv", PAIRS)
    assert pairs_of(text_config(written)) == pairs_of(table_config(written, train="train.tsv")) == PAIRS
    within = {"train": f"{written.name}/train"}  # the name of the split has a folder, too
    assert pairs_of(text_config(written.parent, **within)) == PAIRS


def test_pictures_of_classes_are_found(folders):
    stored, written = folders
    for split in ("train", "validation"):
        save_picture(stored / split / "cat" / "1.png")
    (stored / "labels.csv").write_text("file_name,label\ntrain/cat/1.png,cat\n")
    fields = {"directory": str(written), "cache_dir": str(stored / "cache")}
    assert len(open_images(ImagesConfig(kind="folder", **fields), "train")) == 1
    assert len(open_images(ImagesConfig(kind="table", train="labels.csv", **fields), "train")) == 1
    fields |= {"directory": str(written.parent), "train": f"{written.name}/train"}
    assert len(open_images(ImagesConfig(kind="folder", **fields), "train")) == 1


def test_the_folders_of_a_class_may_have_different_forms(tmp_path):
    """A class of training and its class of the validation had two labels."""
    save_picture(tmp_path / "train" / DECOMPOSED / "1.png")
    save_picture(tmp_path / "validation" / COMPOSED / "1.png")
    config = ImagesConfig(kind="folder", directory=str(tmp_path), cache_dir=str(tmp_path / "cache"))
    names = {split: source.label_names for split, source in open_splits(config).items()}
    assert names == {"train": [COMPOSED], "validation": [COMPOSED]}


def test_arrays_are_found(folders):
    stored, written = folders
    np.savez(stored / "a.npz", train_images=np.zeros((2, 4, 4), np.uint8), train_labels=np.arange(2))
    assert len(open_images(ImagesConfig(kind="arrays", file=str(written / "a.npz")), "train")) == 2


def test_data_of_systems_are_found(folders):
    stored, written = folders
    save_picture(stored / "train" / "1.png")
    (stored / "train" / "1.txt").write_text("a cat\n")
    assert find_captions(CaptionsConfig(kind="txt", directory=str(written)), "train").captions == [["a cat"]]
    with pytest.raises(UserError, match=re.escape(str(stored))):
        open_source(BoxedPicturesConfig(kind="coco", directory=str(written)), "train")
    (stored / "qa1_own_test.txt").write_text("1 Where?\there\t1\n")
    files = find_files(StoriesConfig(kind="babi", directory=str(written)), "test")
    assert files == {"qa1_own": str(stored / "qa1_own_test.txt")}


def test_saved_data_sets_are_found(folders):
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    stored, written = folders
    split = datasets.Dataset.from_dict({"en": ["a", "b"], "de": ["c", "d"]})
    datasets.DatasetDict(train=split).save_to_disk(stored)
    assert pairs_of(text_config(written, kind="huggingface")) == [("a", "c"), ("b", "d")]


def test_an_own_tokenizer_is_looked_for_as_the_disk_spells_it(folders):
    stored, written = folders
    (stored / "own.model").write_bytes(b"no model")
    with pytest.raises(UserError, match=re.escape(f"{stored}/own.model is neither")):
        load_word_pieces(str(written / "own.model"))


def test_missing_paths_stay_as_they_are(tmp_path):
    missing = str(tmp_path / "Öl" / "a.txt")
    assert spell_path(missing) == missing
    assert spell_path("") == ""
