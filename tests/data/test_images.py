"""Tests of labelled images: sources, unusable data, batches and augmentation."""

import dataclasses
import importlib.util
import io
import os
import zipfile

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from tests.support import images as tiny
from tests.support import tfds_sets
from tfm.config import walk_fields
from tfm.data import images
from tfm.data.config import SPLITS, ImagesConfig
from tfm.data.images import (
    ArrayImages,
    ImageBatches,
    augment,
    eval_batches,
    open_images,
    open_splits,
    shift,
)
from tfm.errors import UserError
from tfm.systems.vit.model import ViTConfig

needs_digits = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None,
    reason="scikit-learn is not installed: pip install -e '.[digits]'",
)


@pytest.fixture
def file(tmp_path):
    """Returns the path of an .npz file with three splits."""
    path = tmp_path / "images.npz"
    tiny.write_arrays(path, {"train": 13, "validation": 7, "test": 5})
    return str(path)


def with_arrays(path, **arrays):
    """Returns the config of a file whose split "train" has these arrays."""
    content = {"train_images": np.zeros((2, 4, 4), np.uint8), "train_labels": np.array([0, 1])} | arrays
    np.savez(path, **{name: x for name, x in content.items() if x is not None})
    return ImagesConfig(kind="arrays", file=str(path))


def test_grey_images_get_a_channel_axis(tmp_path):
    config = with_arrays(tmp_path / "x.npz", train_images=np.full((2, 4, 4), 0.5, np.float32))
    source = open_images(config, "train")
    assert source.take(np.array([0]))[0].shape == (1, 4, 4, 1)
    assert (source.largest, source.label_names) == (1.0, ["0", "1"])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"train_images": None}, r"train_images\b.*train_labels"),
        ({"train_images": np.zeros((2, 4))}, r"train_images .*\(2, 4\)"),
        ({"train_images": np.zeros((0, 4, 4))}, r"train_images .*\(0, 4, 4, 1\)"),
        (
            {"train_images": np.full((2, 4, 4), 2.0)},
            r"train_images .*float64 .* from 2\.0 to 2\.0",
        ),
        ({"train_images": np.full((2, 4, 4), np.nan)}, "train_images .*float64 .* from nan"),
        ({"train_images": np.zeros((2, 4, 4), int)}, "train_images .*int64"),
        ({"train_labels": np.array([0])}, r"train_labels .*int64 of shape \(1,\)"),
        ({"train_labels": np.array([0.0, 1.0])}, "train_labels .*float64"),
        ({"train_labels": np.array([0, -1])}, "train_labels .*-1"),
        ({"train_labels": np.array([0, 10**18])}, "train_labels .*9,999,999 .*1000000000000000000"),
        ({"label_names": np.array(["cat"])}, "label_names .*up to 1"),
        ({"label_names": np.array([1, 2])}, "label_names .*up to 1"),
    ],
)
def test_unusable_arrays_are_errors(tmp_path, arrays, message):
    config = with_arrays(tmp_path / "x.npz", **arrays)
    with pytest.raises(UserError, match=message):
        open_images(config, "train")


def test_maximum_label_equals_the_maximum_number_of_classes():
    (classes,) = (leaf.info for leaf in walk_fields(ViTConfig()) if leaf.path == "classes")
    assert classes.maximum == images.arrays.MAX_CLASSES


def test_missing_and_damaged_npz_files_are_errors(tmp_path, file):
    with pytest.raises(UserError, match=r"data\.kind 'arrays' .*data\.file"):
        ImagesConfig(kind="arrays")
    absent = ImagesConfig(kind="arrays", file=str(tmp_path / "absent.npz"))
    with pytest.raises(UserError, match=r"Expected an \.npz file at .*absent\.npz, but there is none"):
        open_images(absent, "train")
    with open(file, "rb") as whole:
        content = whole.read()
    objects = tmp_path / "objects.npz"
    np.savez(objects, train_images=np.array([{}], object), train_labels=np.array([0]))
    for name, damaged in (("text.npz", b"no archive"), ("cut.npz", content[:-40]), ("empty.npz", b"")):
        (tmp_path / name).write_bytes(damaged)
    np.save(tmp_path / "single.npy", np.zeros(3))
    header = {"descr": "|u1", "fortran_order": False, "shape": (10**15, 4, 4)}
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        for name in ("train_images", "train_labels"):
            with archive.open(f"{name}.npy", "w") as array:
                np.lib.format.write_array_header_1_0(array, header)
    for name in ("text.npz", "cut.npz", "empty.npz", "objects.npz", "single.npy", "huge.npz"):
        with pytest.raises(UserError, match=rf"{name} is no .npz file of plain arrays"):
            open_images(ImagesConfig(kind="arrays", file=str(tmp_path / name)), "train")


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipes_and_devices_are_no_files_of_arrays(tmp_path, kind):
    path = tmp_path / "x.npz"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(UserError, match="is a pipe, a socket or a device"):
        open_images(ImagesConfig(kind="arrays", file=str(path)), "train")


def test_compressed_arrays_have_a_limit(tmp_path, monkeypatch):
    """Zeros are compressed to a thousandth, so that a small file can fill the memory."""
    monkeypatch.setattr(images.arrays, "MAX_ARRAY_BYTES", 1000)
    np.savez_compressed(
        tmp_path / "x.npz",
        train_images=np.zeros((10, 10, 10, 1), np.uint8),
        train_labels=np.zeros(10, int),
        other=np.zeros(10_000),
    )
    with pytest.raises(
        UserError, match=r"at most 1,000 bytes in the arrays train_images, train_labels of .*1,"
    ):
        open_images(ImagesConfig(kind="arrays", file=str(tmp_path / "x.npz")), "train")


def test_one_error_lists_all_problems(file):
    config = ImagesConfig(kind="arrays", file=file, train="nothing", test="neither")
    with pytest.raises(UserError, match=r"There are 2 problems .* nothing_images.* neither_images"):
        open_splits(config)
    with pytest.raises(UserError, match=r"data\.test is empty"):
        open_images(ImagesConfig(kind="arrays", file=file, test=""), "test")


def test_error_for_a_missing_array_does_not_call_the_file_damaged(file):
    for split in ("validation", "test"):
        config = ImagesConfig(kind="arrays", file=file, **{split: "dev"})
        with pytest.raises(
            UserError, match=r"^\S+ has no array dev_images\. Its arrays are: label_names, .*"
        ):
            open_images(config, split)


def test_arrays_may_have_no_test_split_of_the_default_name(tmp_path):
    config = ImagesConfig(kind="arrays", file=str(tmp_path / "x.npz"))
    tiny.write_arrays(config.file, {"train": 13, "validation": 7})
    open_splits(config)
    with pytest.raises(UserError, match="no array dev_images"):
        open_splits(dataclasses.replace(config, test="dev"))
    tiny.write_arrays(config.file, {"train": 13})
    with pytest.raises(UserError, match="no array validation_images"):
        open_splits(config)


def test_test_split_without_labels_is_an_error(tmp_path):
    config = ImagesConfig(kind="arrays", file=str(tmp_path / "x.npz"))
    tiny.write_arrays(config.file, {"train": 13, "validation": 7})
    arrays = dict(np.load(config.file))
    np.savez(config.file, test_images=arrays["train_images"], **arrays)
    with pytest.raises(UserError, match="no array test_labels"):
        open_splits(config)


@pytest.mark.long
@needs_digits
def test_digits_are_split_without_overlap():
    sources = {name: open_images(ImagesConfig(kind="digits"), name) for name in SPLITS}
    assert {name: len(source) for name, source in sources.items()} == {
        "train": 1258,
        "validation": 180,
        "test": 359,
    }
    taken = {name: source.take(np.arange(len(source))) for name, source in sources.items()}
    every = [image.tobytes() for pixels, _ in taken.values() for image in pixels]
    assert len(set(every)) == len(every) == 1797
    assert all(pixels.dtype == np.uint8 and pixels.max() == 16 for pixels, _ in taken.values())
    assert all(np.bincount(labels, minlength=10).min() > 5 for _, labels in taken.values())
    assert sources["test"].largest == 16
    with pytest.raises(UserError, match=r"validation, test, train, got 'train\[:9\]'"):
        open_images(ImagesConfig(kind="digits"), "train[:9]")


def test_digits_need_scikit_learn(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    images.read_digits.cache_clear()
    with pytest.raises(UserError, match=r"come with scikit-learn, .*pip install -e '\.\[digits\]'"):
        open_images(ImagesConfig(kind="digits"), "train")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Returns a TFDS folder that contains the data set tiny_images."""
    folder = str(tmp_path_factory.mktemp("tfds"))
    tfds_sets.TinyImages(data_dir=folder, file_format="array_record").download_and_prepare(
        file_format="array_record"
    )
    return folder


def test_tfds_records_are_decoded(prepared):
    config = ImagesConfig(name="tiny_images", directory=prepared, train="train[:4]")
    source = open_images(config, "train")
    found, labels = source.take(np.arange(4))
    assert (len(source), found.shape, found.dtype) == (4, (4, 4, 6, 3), np.uint8)
    assert source.label_names == ["cat", "dog"]
    for image, label in zip(found, labels, strict=True):
        np.testing.assert_array_equal(image, tfds_sets.TinyImages.image(image[0, 0, 0]))
        assert label == image[0, 0, 0] % 2
    other = open_images(ImagesConfig(name="tiny_images", directory=prepared), "train")
    assert source.fingerprint != other.fingerprint


def test_tfds_images_are_cropped_in_the_middle_and_resized(prepared):
    config = ImagesConfig(name="tiny_images", directory=prepared, train="train[:4]")
    whole, labels = open_images(config, "train").take(np.arange(4))
    cropped, same_labels = open_images(dataclasses.replace(config, resize=4), "train").take(np.arange(4))
    np.testing.assert_array_equal(cropped, whole[:, :, 1:5])  # the images have 4 x 6 pixels
    np.testing.assert_array_equal(same_labels, labels)
    larger, _ = open_images(dataclasses.replace(config, resize=8), "train").take(np.arange(4))
    assert larger.shape == (4, 8, 8, 3)


def test_host_without_images_has_a_batch_of_padding(prepared):
    config = ImagesConfig(name="tiny_images", directory=prepared, batch_size=2)
    source = open_images(config, "train")
    shares = [ImageBatches(source, config, 0, host_index=host, host_count=3).batch(0) for host in range(3)]
    assert [share["weights"].tolist() for share in shares] == [[1], [1], [0]]
    assert len({share["images"].shape for share in shares}) == 1


class Unlabelled(list):
    """Records whose labels are unknown (-1)."""

    def __getitems__(self, indices):
        return [self[index] | {"label": -1} for index in indices]


def test_images_without_labels_are_errors(prepared, monkeypatch):
    builder = tfds_sets.TinyImages(data_dir=prepared, file_format="array_record")
    records = builder.as_data_source(split="train", decoders={"image": tfds.decode.SkipDecoding()})
    monkeypatch.setattr(builder, "as_data_source", lambda **_: Unlabelled(records))
    with pytest.raises(UserError, match=r"tiny_images/1\.0\.0 .*-1"):
        images.RecordImages(builder, "train")


class Replaced(list):
    """Records whose images are replaced by the content of a file."""

    content = b""

    def __getitems__(self, indices):
        return [self[index] | {"image": self.content} for index in indices]


def open_replaced(folder, monkeypatch, content):
    """Opens a TFDS split whose images are the content of a file."""
    builder = tfds_sets.TinyImages(data_dir=folder, file_format="array_record")
    records = Replaced(builder.as_data_source(split="train", decoders={"image": tfds.decode.SkipDecoding()}))
    records.content = content
    monkeypatch.setattr(builder, "as_data_source", lambda **_: records)
    return images.RecordImages(builder, "train")


def test_tfds_images_of_16_bits_are_scaled(prepared, monkeypatch):
    values = np.arange(24, dtype=np.uint16).reshape(4, 6) * 2570
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    found, _ = open_replaced(prepared, monkeypatch, file.getvalue()).take(np.arange(1))
    np.testing.assert_array_equal(found[0], np.repeat(values[..., None] // 257, 3, -1))


def test_damaged_tfds_images_are_named(prepared, monkeypatch):
    with pytest.raises(UserError, match=r"Image 0 of tiny_images/1\.0\.0 cannot be read as a picture"):
        open_replaced(prepared, monkeypatch, b"no image")


@pytest.mark.long
def test_arrays_are_encoded_without_tensorflow(tmp_path):
    """MNIST and CIFAR-10 in TFDS yield arrays and read their files with TensorFlow."""
    config = ImagesConfig(name="array_images", directory=str(tmp_path))
    found, labels = open_images(config, "train").take(np.arange(6))
    assert sorted(found[:, 0, 0, 0]) == list(range(6))
    for image, label in zip(found, labels, strict=True):
        np.testing.assert_array_equal(image, tfds_sets.TinyImages.image(image[0, 0, 0]))
        assert label == image[0, 0, 0] % 2


def test_missing_image_feature_or_split_is_an_error(prepared):
    config = ImagesConfig(name="tiny_translate", directory=prepared)
    with pytest.raises(UserError, match=r"'image' .*Image"):
        open_images(config, "train")
    config = ImagesConfig(name="tiny_images", directory=prepared, validation="dev")
    with pytest.raises(UserError, match=r"tiny_images/1\.0\.0 has no split 'dev'"):
        open_images(config, "validation")
    open_splits(config, ["train", "test"])  # the data set has no test split, whose name is the default


SIZE = 10
PIXELS = (np.arange(SIZE * 32) % 251).astype(np.uint8).reshape(SIZE, 4, 4, 2)
SOURCE = ArrayImages(PIXELS, np.arange(SIZE), [str(i) for i in range(SIZE)], 255.0)


def batches(seed=0, batch_size=4, **options):
    fields = {name: options.pop(name) for name in ("max_shift", "flip") if name in options}
    return ImageBatches(SOURCE, ImagesConfig(batch_size=batch_size, **fields), seed, **options)


def test_batch_may_be_larger_than_an_epoch():
    labels = batches(batch_size=25).batch(0)["labels"]
    assert np.bincount(labels).tolist() == np.clip(np.bincount(labels), 2, 3).tolist()


def test_pixels_range_from_minus_one_to_one():
    batch = batches(batch_size=SIZE).batch(0)
    assert {name: x.dtype.name for name, x in batch.items()} == {
        "images": "float32",
        "labels": "int32",
        "weights": "float32",
    }
    order = np.argsort(batch["labels"])
    np.testing.assert_allclose(batch["images"][order], PIXELS / 127.5 - 1, atol=1e-6)
    assert batch["weights"].tolist() == [1] * SIZE


def test_evaluation_batches_have_each_image_once_in_order():
    found = list(eval_batches(SOURCE, 4))
    assert [len(batch["labels"]) for batch in found] == [4, 4, 4]
    assert found[-1]["weights"].tolist() == [1, 1, 0, 0]
    labels = np.concatenate([batch["labels"][batch["weights"] > 0] for batch in found])
    assert labels.tolist() == list(range(SIZE))
    assert not found[-1]["images"][2:].any()


def test_shift_equals_a_loop_over_pixels():
    rng = np.random.default_rng(0)
    images = rng.integers(1, 9, (6, 3, 4, 2))
    shifts = rng.integers(-2, 3, (6, 2))
    shifts[0] = 0
    expected = np.zeros_like(images)
    for n, row, column in np.ndindex(6, 3, 4):
        source = row - shifts[n, 0], column - shifts[n, 1]
        if 0 <= source[0] < 3 and 0 <= source[1] < 4:
            expected[n, row, column] = images[n, *source]
    np.testing.assert_array_equal(shift(images, shifts), expected)


def test_images_are_flipped_and_shifted_as_configured():
    rng = np.random.default_rng(0)
    images = rng.integers(1, 9, (400, 3, 3, 1))

    def changed(**fields):
        config, mine = ImagesConfig(**fields), slice(None)
        return augment(images, config, np.random.default_rng(1), 400, mine)

    np.testing.assert_array_equal(changed(), images)
    flipped = changed(flip=True)
    mirrored = (flipped == images[:, :, ::-1]).all((1, 2, 3))
    assert (mirrored | (flipped == images).all((1, 2, 3))).all()
    assert 150 < mirrored.sum() < 250
    moved = changed(max_shift=1)
    kept = (moved == images).all((1, 2, 3)).mean()
    assert 0.05 < kept < 0.2  # 1 of 9 shifts


@pytest.mark.parametrize("fields", [{"max_shift": 2}, {"flip": True}])
def test_augmentation_depends_only_on_seed_and_step(fields):
    same = ArrayImages(np.repeat(PIXELS[:1], SIZE, axis=0), np.arange(SIZE), SOURCE.label_names, 255.0)
    config = ImagesConfig(batch_size=SIZE, **fields)

    def changed(seed, step):
        return ImageBatches(same, config, seed).batch(step)["images"]

    np.testing.assert_array_equal(changed(3, 5), changed(3, 5))
    assert not np.array_equal(changed(3, 5), changed(4, 5))
    assert not np.array_equal(changed(3, 5), changed(3, 6))
