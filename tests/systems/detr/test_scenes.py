"""Tests of generated scenes by an independent reading of what they show, and of batches of pictures."""

import collections

import numpy as np
import pytest
import sklearn.datasets

from tfm.systems.detr.batches import BoxedPicture, BoxedPicturesConfig, assemble, picture_size
from tfm.systems.detr.scenes import Scenes

HEIGHT, WIDTH, COUNT = 12, 20, 500


@pytest.fixture(scope="module")
def digits():
    """Returns {bytes of the part that is not black: class} of scikit-learn's digits."""
    data = sklearn.datasets.load_digits()
    return {trim(image)[1]: label for image, label in zip(data.images, data.target, strict=True)}


def trim(image):
    """Returns the rows and columns of what is not black, and the bytes of what they contain."""
    rows, columns = np.nonzero(image)
    top, bottom, left, right = rows.min(), rows.max() + 1, columns.min(), columns.max() + 1
    shape = np.array([bottom - top, right - left])
    return (top, bottom, left, right), (shape.tobytes(), image[top:bottom, left:right].astype(int).tobytes())


def make_scenes(split="train", count=COUNT, **fields):
    config = BoxedPicturesConfig(height=HEIGHT, width=WIDTH, **fields)
    scenes = Scenes(config, split)
    return [scenes.make(3, number) for number in range(count)]


@pytest.fixture(scope="module")
def single():
    """Returns scenes of one digit."""
    return make_scenes(max_objects=1)


def test_box_and_label_of_a_digit_are_what_an_independent_reader_finds(single, digits):
    for image, boxes, labels in single:
        (top, bottom, left, right), content = trim(8 * (image[..., 0] + 1))
        expected = [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]
        np.testing.assert_allclose(boxes, [np.divide(expected, [WIDTH, HEIGHT] * 2)], rtol=1e-5)
        assert labels.tolist() == [digits[content]]


def test_digits_lie_everywhere_in_a_scene(single):
    """The places of a cell of 8 x 8 pixels are uniform, also at the margins."""
    corners = [trim(image[..., 0] + 1)[0] for image, _, _ in single]
    tops, bottoms, lefts, rights = (np.array(numbers) for numbers in zip(*corners, strict=True))
    assert (tops.min(), bottoms.max(), rights.max()) == (0, HEIGHT, WIDTH)
    assert lefts.min() <= 1  # the first column of most digits is empty
    rows = collections.Counter(tops[bottoms - tops == 8].tolist())  # digits as high as their cell
    assert rows.keys() == set(range(HEIGHT - 7))
    expected = sum(rows.values()) / len(rows)
    assert all(abs(count - expected) < 5 * np.sqrt(expected) for count in rows.values())


def test_each_digit_is_equally_frequent(single):
    counts = collections.Counter(int(labels[0]) for _, _, labels in single)
    assert counts.keys() == set(range(10))
    assert all(abs(count - COUNT / 10) < 5 * np.sqrt(COUNT / 10) for count in counts.values())


def test_each_number_of_digits_is_equally_frequent_where_they_may_overlap():
    counts = collections.Counter(len(labels) for _, _, labels in make_scenes(max_objects=3, max_overlap=1))
    assert counts.keys() == {1, 2, 3}
    assert all(abs(count - COUNT / 3) < 5 * np.sqrt(COUNT * 2 / 9) for count in counts.values())


@pytest.fixture(scope="module")
def images():
    """Returns {class: scikit-learn's digits of this class}, int [N, 8, 8]."""
    data = sklearn.datasets.load_digits()
    return {label: data.images[data.target == label].astype(int) for label in range(10)}


def find_cells(image, box, candidates):
    """Yields (top, left) of the cell, and the picture of a digit alone, for each digit that fits into a box.

    A digit fits if its box is the box, and if the image is nowhere darker.
    """
    for digit in candidates:
        top, bottom, left, right = trim(digit)[0]
        x, y, width, height = box * [WIDTH, HEIGHT, WIDTH, HEIGHT]
        if (round(height), round(width)) != (bottom - top, right - left):
            continue
        corner = round(y - height / 2) - top, round(x - width / 2) - left
        alone = np.zeros((HEIGHT + 16, WIDTH + 16), int)
        alone[corner[0] + 8 : corner[0] + 16, corner[1] + 8 : corner[1] + 16] = digit
        alone = alone[8:-8, 8:-8]
        if (alone <= image).all():
            yield corner, alone


def read_pairs(images, count, max_overlap):
    """Yields the overlap of the cells of two digits, the image and each digit alone, if these are certain."""
    for scene in make_scenes(count=count, max_objects=2, max_overlap=max_overlap):
        image = np.rint(8 * (scene.image[..., 0] + 1)).astype(int)
        found = [
            list(find_cells(image, box, images[int(label)]))
            for box, label in zip(scene.boxes, scene.labels, strict=True)
        ]
        assert all(found), "a digit is not in the image"
        if [len(cells) for cells in found] == [1, 1]:
            (one, first), (other, second) = found[0][0], found[1][0]
            shared = np.prod(np.maximum(8 - np.abs(np.subtract(one, other)), 0))
            yield shared / (128 - shared), image, first, second


def test_overlapping_digits_show_the_brighter_pixel(images):
    pairs = list(read_pairs(images, 60, max_overlap=1))
    assert max(overlap for overlap, *_ in pairs) > 0.3
    for _, image, first, second in pairs:
        np.testing.assert_array_equal(image, np.maximum(first, second))


@pytest.mark.parametrize(("max_overlap", "reached"), [(0.0, 0.0), (0.2, 0.15)])
def test_overlap_of_cells_reaches_the_limit_but_not_more(images, max_overlap, reached):
    overlaps = [overlap for overlap, *_ in read_pairs(images, 150, max_overlap)]
    assert len(overlaps) > 20
    assert reached <= max(overlaps) <= max_overlap


def test_splits_have_different_digits_and_different_places(digits):
    shown, places = {}, {}
    for split in ("train", "validation", "test"):
        scenes = make_scenes(split, 100, max_objects=1)
        shown[split] = {trim(8 * (image[..., 0] + 1))[1] for image, _, _ in scenes}
        places[split] = [tuple(np.round(boxes[0, :2], 1)) for _, boxes, _ in scenes]
        assert shown[split] <= digits.keys()
    assert not shown["train"] & shown["test"]
    assert not shown["train"] & shown["validation"]
    assert sum(a == b for a, b in zip(places["train"], places["test"], strict=True)) < 50


def test_fingerprints_follow_the_split_and_the_config():
    base, *others = (
        Scenes(BoxedPicturesConfig(max_objects=count), split).fingerprint
        for split, count in (("train", 3), ("test", 3), ("train", 2))
    )
    assert base not in others


def test_batches_have_pictures_at_the_top_left_and_zeros_in_padding():
    config = BoxedPicturesConfig(height=8, width=10, max_objects=2)
    rng = np.random.default_rng(0)
    small, whole = rng.uniform(0.1, 1, (4, 6, 1)), rng.uniform(0.1, 1, (8, 10, 1))
    boxes, labels = rng.uniform(0.1, 1, (2, 4)), np.array([7, 2])
    pictures = [BoxedPicture(small, boxes[:1], labels[:1]), BoxedPicture(whole, boxes, labels)]
    batch = assemble(config, 1, pictures, 3)
    images = np.zeros((3, 8, 10, 1))
    images[0, :4, :6], images[1] = small, whole
    np.testing.assert_allclose(batch["images"], images, rtol=1e-6)
    valid = np.ones((3, 8, 10), bool)
    valid[0, 4:], valid[0, :, 6:] = False, False
    np.testing.assert_array_equal(batch["valid"], valid)
    np.testing.assert_allclose(batch["boxes"], [[boxes[0], [0] * 4], boxes, [[0] * 4] * 2], rtol=1e-6)
    assert batch["labels"].tolist() == [[7, 0], [7, 2], [0, 0]]
    assert batch["objects"].tolist() == [[1, 0], [1, 1], [0, 0]]
    assert batch["weights"].tolist() == [1, 1, 0]
    assert [picture_size(batch, row) for row in range(2)] == [(4, 6), (8, 10)]
