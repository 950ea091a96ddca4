"""Sources of labelled images: what they hold, and one error message for what they cannot."""

import importlib.util

import numpy as np
import pytest
import tensorflow_datasets as tfds

from tests.support import images as tiny
from tests.support import tfds_sets
from tfm.data import images
from tfm.data.images import ArrayImages, ImageDataConfig, RecordImages, check_splits, open_images
from tfm.errors import UserError

needs_digits = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None,
    reason="scikit-learn is not installed: pip install '.[digits]'",
)


@pytest.fixture
def file(tmp_path):
    """Path of an .npz file with three splits."""
    path = tmp_path / "images.npz"
    tiny.write_arrays(path, {"train": 13, "validation": 7, "test": 5})
    return str(path)


def with_arrays(path, **arrays):
    """The config of a file with these arrays in place of those of the split "train"."""
    content = {"train_images": np.zeros((2, 4, 4), np.uint8), "train_labels": np.array([0, 1])} | arrays
    np.savez(path, **{name: x for name, x in content.items() if x is not None})
    return ImageDataConfig(kind="arrays", file=str(path))


def test_arrays_are_those_of_the_file(file):
    source = open_images(ImageDataConfig(kind="arrays", file=file), "validation")
    with np.load(file) as arrays:
        found, labels = source.take(np.array([6, 0]))
        np.testing.assert_array_equal(found, arrays["validation_images"][[6, 0]])
        np.testing.assert_array_equal(labels, arrays["validation_labels"][[6, 0]])
    assert (len(source), source.largest, labels.dtype) == (7, 255.0, np.int64)
    assert source.label_names == ["cat", "dog", "bird"]


def test_a_grey_image_gets_a_channel(tmp_path):
    config = with_arrays(tmp_path / "x.npz", train_images=np.full((2, 4, 4), 0.5, np.float32))
    source = open_images(config, "train")
    assert source.take(np.array([0]))[0].shape == (1, 4, 4, 1)
    assert (source.largest, source.label_names) == (1.0, ["0", "1"])


def test_fingerprints_tell_contents_apart():
    pixels, labels = np.zeros((2, 4, 4, 1), np.uint8), np.array([0, 1])
    changed = pixels.copy()
    changed[1, 2, 3] = 1
    sources = [
        ArrayImages(pixels, labels, ["a", "b"], 255.0),
        ArrayImages(changed, labels, ["a", "b"], 255.0),
        ArrayImages(pixels, labels[::-1], ["a", "b"], 255.0),
        ArrayImages(pixels, labels, ["a", "c"], 255.0),
        ArrayImages(pixels, labels, ["a", "b"], 1.0),
    ]
    assert len({source.fingerprint for source in sources}) == 5
    assert ArrayImages(pixels.copy(), labels, ["a", "b"], 255.0).fingerprint == sources[0].fingerprint


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"train_images": None}, r"train_images\b.*train_labels"),
        ({"train_images": np.zeros((2, 4))}, r"train_images .*\(2, 4\)"),
        ({"train_images": np.zeros((0, 4, 4))}, r"train_images .*\(0, 4, 4, 1\)"),
        (
            {"train_images": np.full((2, 4, 4), 2.0)},
            r"train_images .*float64 of 2\.0 to 2\.0",
        ),
        ({"train_images": np.full((2, 4, 4), np.nan)}, "train_images .*float64 of nan"),
        ({"train_images": np.zeros((2, 4, 4), int)}, "train_images .*int64"),
        ({"train_labels": np.array([0])}, r"train_labels .*int64 of shape \(1,\)"),
        ({"train_labels": np.array([0.0, 1.0])}, "train_labels .*float64"),
        ({"train_labels": np.array([0, -1])}, "train_labels .*-1"),
        ({"label_names": np.array(["cat"])}, "label_names .*up to 1"),
        ({"label_names": np.array([1, 2])}, "label_names .*up to 1"),
    ],
)
def test_arrays_that_do_not_fit_are_errors(tmp_path, arrays, message):
    config = with_arrays(tmp_path / "x.npz", **arrays)
    with pytest.raises(UserError, match=message):
        open_images(config, "train")


def test_files_that_are_no_arrays_are_errors(tmp_path, file):
    with pytest.raises(UserError, match=r"data\.kind 'arrays' .*data\.file"):
        ImageDataConfig(kind="arrays")
    absent = ImageDataConfig(kind="arrays", file=str(tmp_path / "absent.npz"))
    with pytest.raises(UserError, match=r"Expected an \.npz file at .*absent\.npz, but there is none"):
        open_images(absent, "train")
    with open(file, "rb") as whole:
        content = whole.read()
    objects = tmp_path / "objects.npz"
    np.savez(objects, train_images=np.array([{}], object), train_labels=np.array([0]))
    for name, damaged in (("text.npz", b"no archive"), ("cut.npz", content[:-40]), ("empty.npz", b"")):
        (tmp_path / name).write_bytes(damaged)
    for name in ("text.npz", "cut.npz", "empty.npz", "objects.npz"):
        with pytest.raises(UserError, match=rf"{name} is no .npz file of plain arrays"):
            open_images(ImageDataConfig(kind="arrays", file=str(tmp_path / name)), "train")


def test_all_problems_are_one_message(file):
    config = ImageDataConfig(kind="arrays", file=file, train="nothing", test="neither")
    with pytest.raises(UserError, match=r"There are 2 problems .* nothing_images.* neither_images"):
        check_splits(config)
    with pytest.raises(UserError, match=r"data\.test is empty"):
        open_images(ImageDataConfig(kind="arrays", file=file, test=""), "test")


@needs_digits
def test_digits_are_divided_once():
    sources = {name: open_images(ImageDataConfig(kind="digits"), name) for name in images.SPLITS}
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
        open_images(ImageDataConfig(kind="digits"), "train[:9]")


def test_digits_need_scikit_learn(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    images.read_digits.cache_clear()
    with pytest.raises(UserError, match=r"come with scikit-learn, .*pip install '\.\[digits\]'"):
        open_images(ImageDataConfig(kind="digits"), "train")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Folder of TFDS with the data set tiny_images."""
    folder = str(tmp_path_factory.mktemp("tfds"))
    tfds_sets.TinyImages(data_dir=folder, file_format="array_record").download_and_prepare(
        file_format="array_record"
    )
    return folder


def test_records_are_decoded(prepared):
    config = ImageDataConfig(name="tiny_images", directory=prepared, train="train[:4]")
    source = open_images(config, "train")
    found, labels = source.take(np.arange(4))
    assert (len(source), found.shape, found.dtype) == (4, (4, 4, 6, 3), np.uint8)
    assert source.label_names == ["cat", "dog"]
    for image, label in zip(found, labels, strict=True):
        np.testing.assert_array_equal(image, tfds_sets.TinyImages.image(image[0, 0, 0]))
        assert label == image[0, 0, 0] % 2
    other = open_images(ImageDataConfig(name="tiny_images", directory=prepared), "train")
    assert source.fingerprint != other.fingerprint


class Unlabelled(list):
    """Records of which none has a label."""

    def __getitems__(self, indices):
        return [self[index] | {"label": -1} for index in indices]


def test_images_without_a_label_are_errors(prepared, monkeypatch):
    builder = tfds_sets.TinyImages(data_dir=prepared, file_format="array_record")
    records = builder.as_data_source(split="train", decoders={"image": tfds.decode.SkipDecoding()})
    monkeypatch.setattr(builder, "as_data_source", lambda **_: Unlabelled(records))
    with pytest.raises(UserError, match=r"tiny_images/1\.0\.0 .*-1"):
        RecordImages(builder, "train").take(np.arange(2))


@pytest.mark.long
def test_arrays_are_encoded_without_tensorflow(tmp_path):
    """As MNIST and CIFAR-10 of TFDS give them, which also read files by TensorFlow."""
    config = ImageDataConfig(name="array_images", directory=str(tmp_path))
    found, labels = open_images(config, "train").take(np.arange(6))
    assert sorted(found[:, 0, 0, 0]) == list(range(6))
    for image, label in zip(found, labels, strict=True):
        np.testing.assert_array_equal(image, tfds_sets.TinyImages.image(image[0, 0, 0]))
        assert label == image[0, 0, 0] % 2


def test_data_sets_without_images_are_errors(prepared):
    config = ImageDataConfig(name="tiny_translate", directory=prepared)
    with pytest.raises(UserError, match=r"'image' .*Image"):
        open_images(config, "train")
    config = ImageDataConfig(name="tiny_images", directory=prepared, validation="dev")
    with pytest.raises(UserError, match=r"tiny_images/1\.0\.0 has no split 'dev'"):
        open_images(config, "validation")
