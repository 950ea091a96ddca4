"""Tests of labelled pictures in files: folders, tables and data sets of Hugging Face, and their commands."""

import json
import os
import sys

import numpy as np
import pytest
from PIL import Image

from tfm.commands import data as data_command
from tfm.data import picture_index
from tfm.data.config import ImagesConfig
from tfm.data.data_errors import MissingFile
from tfm.data.images import ImageBatches, open_images, open_splits
from tfm.data.images.augmentation import Crops, crop_arrays
from tfm.data.picture_files import choose_slice, list_pictures
from tfm.errors import UserError
from tfm.systems.vit.model import ViTConfig
from tfm.tasks import image_classification

CLASSES = {"train": ("cat", "dog", "eel"), "validation": ("cat", "eel")}


def save(path, seed, size=(9, 7), mode="RGB"):
    """Writes a random picture of width and height `size`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)


@pytest.fixture
def folder(tmp_path):
    """Returns a folder with a folder for each class. Two pictures of a class have other shapes and modes."""
    for split, classes in CLASSES.items():
        for number, name in enumerate(classes):
            for picture in range(4):
                size, mode = ((9, 7), "RGB") if picture else ((5, 12), "L")
                save(tmp_path / split / name / f"{picture}.png", 10 * number + picture, size, mode)
    return tmp_path


def config_of(folder, **fields):
    values = {"kind": "folder", "directory": str(folder), "resize": 6, "cache_dir": str(folder / "cache")}
    return ImagesConfig(**(values | fields))


def write_config(folder, **fields):
    model = ViTConfig(image_size=6, patch_size=3, classes=3, encoder_layers=1, d_model=8, d_ff=8, heads=2)
    return image_classification.Config(model=model, data=config_of(folder, **fields))


def test_folders_name_the_classes_and_pictures_become_squares(folder):
    source = open_images(config_of(folder), "train")
    images, labels = source.take(np.arange(len(source)))
    assert source.label_names == ["cat", "dog", "eel"]
    assert labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert images.shape == (12, 6, 6, 3)
    with Image.open(folder / "train" / "dog" / "1.png") as picture:  # the middle 7 x 7 of 9 x 7 pixels
        expected = picture.crop((1, 0, 8, 7)).resize((6, 6), Image.Resampling.BILINEAR)
    # The columns at the border are also blended with the pixels beside the square.
    np.testing.assert_array_equal(images[5][:, 1:-1], np.asarray(expected)[:, 1:-1])


@pytest.mark.parametrize("how", ["crop", "pad", "stretch"])
def test_each_way_of_resizing_gives_a_square(folder, how):
    (image,), _ = open_images(config_of(folder, resizing=how), "train").take(np.array([1]))
    assert image.shape == (6, 6, 3)
    has_margin = (image == 0).all(axis=(1, 2)).any()
    assert has_margin == (how == "pad")


def test_a_split_without_a_class_keeps_the_labels_of_the_model(folder, tmp_path):
    config = write_config(folder)
    names = image_classification.find_names(config, open_splits(config.data))
    source = image_classification.open_split(config, "validation", names)
    assert source.take(np.arange(8))[1].tolist() == [0] * 4 + [2] * 4
    save(folder / "validation" / "fox" / "1.png", 0)
    with pytest.raises(UserError, match=r"1 pictures have classes .*: fox"):
        image_classification.open_split(config, "validation", names)


def test_parts_of_a_folder_share_no_picture_and_miss_none(folder):
    parts = [open_images(config_of(folder, train=f"train[{part}]"), "train") for part in (":70%", "70%:")]
    assert sorted(np.concatenate([part.index.hashes for part in parts]).tolist()) == sorted(
        open_images(config_of(folder), "train").index.hashes.tolist()
    )
    assert [len(part) for part in parts] == [8, 4]


def test_names_of_pictures_decide_their_part():
    names = [f"{number}.png" for number in range(100)]
    chosen = {names[index] for index in choose_slice(names, 0, 30)}
    assert {names[::-1][index] for index in choose_slice(names[::-1], 0, 30)} == chosen
    assert len(chosen) == 30


def test_hidden_and_other_files_and_loops_of_links_are_left_out(folder):
    before = list_pictures(str(folder / "train"))
    (folder / "train" / "cat" / "notes.txt").write_text("x")
    (folder / "train" / "cat" / ".hidden.png").write_bytes(b"x")
    (folder / "train" / "cat" / "loop").symlink_to(folder / "train")
    assert list_pictures(str(folder / "train")) == before


def test_a_table_names_files_with_or_without_their_endings(folder):
    rows = [("cat/0", "tabby"), ("dog/1.png", "poodle"), ("eel/2.png", "7")]
    (folder / "labels.csv").write_text("id,breed\n" + "".join(f"{a},{b}\n" for a, b in rows))
    (folder / "labels.jsonl").write_text("".join(json.dumps({"id": a, "breed": b}) + "\n" for a, b in rows))
    for name in ("labels.csv", "labels.jsonl"):
        columns = {"picture_column": "id", "label_column": "breed", "pictures": "train"}
        source = open_images(config_of(folder, kind="table", train=name, **columns), "train")
        assert source.label_names == ["7", "poodle", "tabby"]
        images, labels = source.take(np.arange(3))
        assert labels.tolist() == [2, 1, 0]
        expected, _ = open_images(config_of(folder), "train").take(np.array([0, 5, 10]))
        np.testing.assert_array_equal(images, expected)


def test_problems_of_a_table_name_their_rows(folder):
    (folder / "metadata.csv").write_text("file_name,label\ntrain/cat/0.png,\ntrain/cat/9.png,cat\n")
    with pytest.raises(UserError, match=r"row 1: the label .* is empty.*row 2: 'train/cat/9.png' is not in"):
        open_images(config_of(folder, kind="table", train="metadata.csv"), "train")


def test_damaged_pictures_are_found_before_training_and_named(folder):
    path = folder / "train" / "dog" / "2.jpg"
    save(path, 0, (64, 64))
    path.write_bytes(path.read_bytes()[:700])
    (folder / "train" / "eel" / "empty.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"2 problems.*dog/2\.jpg.*eel/empty\.png"):
        open_images(config_of(folder), "train")


def test_pictures_are_decoded_once_until_a_file_changes(folder, monkeypatch):
    first = open_images(config_of(folder), "train")
    decoded = []
    real = picture_index.read_picture
    monkeypatch.setattr(picture_index, "read_picture", lambda *args: decoded.append(args[1]) or real(*args))
    again = open_images(config_of(folder), "train")
    assert not decoded
    assert again.fingerprint == first.fingerprint
    save(folder / "train" / "cat" / "1.png", 77)
    assert open_images(config_of(folder), "train").fingerprint != first.fingerprint
    assert len(decoded) == 12


def test_a_damaged_index_is_built_again(folder):
    first = open_images(config_of(folder), "train")
    (cached,) = (folder / "cache" / "pictures").iterdir()
    cached.write_bytes(cached.read_bytes()[:100])
    assert open_images(config_of(folder), "train").fingerprint == first.fingerprint


def test_the_content_identifies_the_pictures_wherever_they_are(folder, tmp_path):
    first = open_images(config_of(folder), "train").fingerprint
    os.rename(folder / "train", folder / "elsewhere")
    (folder / "moved").mkdir()
    os.rename(folder / "elsewhere", folder / "moved" / "train")
    assert open_images(config_of(folder / "moved"), "train").fingerprint == first


@pytest.mark.parametrize("loose", [True, False])
def test_pictures_without_a_folder_for_their_class_are_refused(tmp_path, loose):
    (tmp_path / "train").mkdir()
    if loose:
        save(tmp_path / "train" / "1.png", 0)
    with pytest.raises(UserError, match=r"a folder for each class.*data\.kind=table"):
        open_images(config_of(tmp_path), "train")


def test_a_missing_split_is_a_missing_file(folder):
    with pytest.raises(MissingFile, match="nothing"):
        open_images(config_of(folder), "nothing")


def test_crops_lie_inside_and_have_the_drawn_area():
    rng = np.random.default_rng(0)
    sizes = rng.integers(5, 400, (2000, 2))
    boxes = np.array(Crops(0.2, rng.random((2000, 4))).boxes(sizes))
    left, top, right, bottom = boxes.T
    heights, widths = sizes.T
    assert (boxes[:, :2] >= 0).all()
    assert (right <= widths + 1e-6).all()
    assert (bottom <= heights + 1e-6).all()
    shares = (right - left) * (bottom - top) / (heights * widths)
    assert shares.min() > 0.19  # a tall or wide rectangle of almost the whole image is cut
    assert 0.5 < shares.mean() < 0.61
    ratios = (right - left) / widths / ((bottom - top) / heights)
    assert (ratios < 4 / 3 + 1e-6).all()
    assert (ratios > 3 / 4 - 1e-6).all()


def test_a_crop_of_the_whole_image_changes_nothing():
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 6, 3), dtype=np.uint8)
    whole = Crops(1.0, np.full((3, 4), 0.5))
    np.testing.assert_array_equal(crop_arrays(images, whole), images)


def test_random_crops_depend_on_seed_and_step_and_not_on_the_hosts(folder):
    config = config_of(folder, random_crop=0.3, batch_size=5)
    source = open_images(config, "train")
    batches = ImageBatches(source, config, 3)
    first = batches.batch(1)["images"]
    np.testing.assert_array_equal(ImageBatches(source, config, 3).batch(1)["images"], first)
    assert (ImageBatches(source, config, 4).batch(1)["images"] != first).any()
    parts = [ImageBatches(source, config, 3, host_index=host, host_count=2).batch(1) for host in (0, 1)]
    np.testing.assert_array_equal(parts[0]["images"][:3], first[::2])
    np.testing.assert_array_equal(parts[1]["images"][:2], first[1::2])


def test_normalized_arrays_become_the_images_again(tmp_path):
    rng = np.random.default_rng(0)
    images, mean, deviation = rng.random((4, 6, 6, 3)), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    normalized = ((images - mean) / deviation).astype(np.float32)
    np.savez(tmp_path / "a.npz", train_images=normalized, train_labels=np.arange(4))
    fields = {"kind": "arrays", "file": str(tmp_path / "a.npz")}
    source = open_images(ImagesConfig(**fields, mean=mean, deviation=deviation), "train")
    np.testing.assert_allclose(source.take(np.arange(4))[0], images, atol=1e-6)
    with pytest.raises(UserError, match=r"go from .* instead of 0 to 1"):
        open_images(ImagesConfig(**fields, mean=(0.5,), deviation=(0.9,)), "train")
    with pytest.raises(UserError, match="a value for each channel"):
        open_images(ImagesConfig(**fields, mean=(0.5, 0.5)), "train")
    with pytest.raises(UserError, match="floats from 0 to 1"):
        open_images(ImagesConfig(**fields), "train")


@pytest.fixture
def dataset(tmp_path):
    """Returns a folder that `save_to_disk` has written: Image features with classes and with texts."""
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    pictures = [np.random.default_rng(i).integers(0, 256, (6, 6, 3), dtype=np.uint8) for i in range(6)]
    features = datasets.Features(
        image=datasets.Image(), label=datasets.ClassLabel(names=["no", "yes"]), word=datasets.Value("string")
    )
    columns = {"image": pictures, "label": [0, 1, 1, 0, 1, 0], "word": ["b", "a", "b", "b", "a", "b"]}
    split = datasets.Dataset.from_dict(columns, features=features)
    datasets.DatasetDict(train=split, validation=split.select([2, 3])).save_to_disk(tmp_path / "set")
    return tmp_path, pictures


def test_images_of_hugging_face_have_the_names_of_their_classes(dataset):
    folder, pictures = dataset
    config = config_of(folder / "set", kind="huggingface", resize=0, cache_dir=str(folder / "cache"))
    source = open_images(config, "train")
    images, labels = source.take(np.array([4, 0]))
    np.testing.assert_array_equal(images, [pictures[4], pictures[0]])
    assert (source.label_names, labels.tolist()) == (["no", "yes"], [1, 0])
    assert open_images(config, "train").fingerprint == source.fingerprint
    assert open_images(config, "validation").fingerprint != source.fingerprint


def test_labels_of_hugging_face_may_be_texts(dataset):
    folder, _ = dataset
    config = config_of(folder / "set", kind="huggingface", label_column="word", resize=0)
    source = open_images(config, "train")
    assert source.label_names == ["a", "b"]
    assert source.labels.tolist() == [1, 0, 1, 1, 0, 1]
    with pytest.raises(UserError, match=r"no column 'kind', but image, label, word\. Set data\.label_column"):
        open_images(config_of(folder / "set", kind="huggingface", label_column="kind"), "train")


def test_missing_labels_are_errors_and_the_text_none_is_a_class(dataset):
    """A class with the name none was taken for a missing label."""
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    folder, pictures = dataset
    features = datasets.Features(image=datasets.Image(), label=datasets.Value("string"))

    def save_labels(*labels):
        columns = {"image": pictures[: len(labels)], "label": labels}
        split = datasets.Dataset.from_dict(columns, features=features)
        datasets.DatasetDict(train=split).save_to_disk(folder / "labels")
        return config_of(folder / "labels", kind="huggingface", cache_dir=str(folder / "cache"))

    source = open_images(save_labels("none", "car", "none"), "train")
    assert (source.label_names, source.labels.tolist()) == (["car", "none"], [1, 0, 1])
    with pytest.raises(UserError, match=r"Row 2 of .* has no label.*\(2\)"):
        open_images(save_labels("car", None, " "), "train")


@pytest.mark.long
def test_slices_of_the_same_files_have_their_own_index(dataset, monkeypatch):
    """Two halves of a split had the index of the first half, so that all pictures were in both."""
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    folder, _ = dataset
    monkeypatch.chdir(folder)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "datasets")
    for number in range(6):
        save(folder / "mine" / "train" / ("cat", "dog")[number % 2] / f"{number}.png", number)
    fields = {"kind": "huggingface", "name": "mine", "directory": "", "cache_dir": str(folder / "cache")}
    halves = [
        open_images(config_of(folder, **fields | {"train": f"train[{part}]"}), "train")
        for part in (":50%", "50%:")
    ]
    assert len({hashed for half in halves for hashed in half.index.hashes.tolist()}) == 6
    assert halves[0].fingerprint != halves[1].fingerprint


def test_columns_of_the_same_files_have_their_own_index(dataset):
    """A data set for segmentation has two columns of pictures."""
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    folder, pictures = dataset
    columns = {"image": pictures, "mask": pictures[::-1], "label": [0] * 6}
    features = datasets.Features(image=datasets.Image(), mask=datasets.Image(), label=datasets.Value("int64"))
    split = datasets.Dataset.from_dict(columns, features=features)
    datasets.DatasetDict(train=split).save_to_disk(folder / "masks")
    images, masks = (
        open_images(config_of(folder / "masks", kind="huggingface", picture_column=column), "train")
        for column in ("image", "mask")
    )
    assert images.index.hashes.tolist() == masks.index.hashes.tolist()[::-1]


def test_a_data_set_without_the_package_is_one_error(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"needs the package datasets: .*pip install"):
        open_images(config_of(folder, kind="huggingface"), "train")


def test_tfm_data_shows_classes_sizes_duplicates_and_overlap(folder, tmp_path, capsys):
    flags = [f"--config.data.{name}={value}" for name, value in (("kind", "folder"), ("directory", folder))]
    save(folder / "train" / "cat" / "copy.png", 1)  # equals 1.png
    data_command.main(
        ["--config=vit", *flags, f"--config.data.cache_dir={folder / 'cache'}", "--format=json"]
    )
    train, validation = json.loads(capsys.readouterr().out)
    assert train["classes"] == {"cat": 5, "dog": 4, "eel": 4}
    assert (train["images"], train["duplicates"], train["overlap"]) == (13, 1, None)
    # Training has the pictures of the class eel, too, in the class dog.
    assert (validation["images"], validation["overlap"]) == (8, 8)
    data_command.main(["--config=vit", *flags, f"--config.data.cache_dir={folder / 'cache'}"])
    shown = capsys.readouterr().out
    assert "train: 13 images of 3 classes\n" in shown
    assert "sizes       7 x 9 (10), 12 x 5 (3)\n" in shown
    assert "modes       RGB (10), L (3)\n" in shown
