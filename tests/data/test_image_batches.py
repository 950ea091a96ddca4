"""Batches of images: each image once an epoch, the same for any number of hosts, changed at random."""

import numpy as np
import pytest

from tfm.data.image_batches import ImageBatches, augment, eval_batches, shift
from tfm.data.images import ArrayImages, ImageDataConfig

SIZE = 10
PIXELS = (np.arange(SIZE * 32) % 251).astype(np.uint8).reshape(SIZE, 4, 4, 2)
SOURCE = ArrayImages(PIXELS, np.arange(SIZE), [str(i) for i in range(SIZE)], 255.0)


def batches(seed=0, batch_size=4, **options):
    fields = {name: options.pop(name) for name in ("max_shift", "flip") if name in options}
    return ImageBatches(SOURCE, ImageDataConfig(batch_size=batch_size, **fields), seed, **options)


def test_each_epoch_has_each_image_once():
    made = batches()
    labels = np.concatenate([made.batch(step)["labels"] for step in range(5)])
    first, second = labels[:SIZE], labels[SIZE:]
    assert sorted(first) == sorted(second) == list(range(SIZE))
    assert first.tolist() != second.tolist()
    assert [made.describe(step)["epoch"] for step in range(5)] == [0, 0, 0, 1, 1]
    assert made.describe(3)["images"] == labels[12:16].tolist()


def test_a_batch_may_be_larger_than_an_epoch():
    labels = batches(batch_size=25).batch(0)["labels"]
    assert np.bincount(labels).tolist() == np.clip(np.bincount(labels), 2, 3).tolist()


def test_pixels_go_from_minus_one_to_one():
    batch = batches(batch_size=SIZE).batch(0)
    assert {name: x.dtype.name for name, x in batch.items()} == {
        "images": "float32",
        "labels": "int32",
        "weights": "float32",
    }
    order = np.argsort(batch["labels"])
    np.testing.assert_allclose(batch["images"][order], PIXELS / 127.5 - 1, atol=1e-6)
    assert batch["weights"].tolist() == [1] * SIZE


def test_hosts_divide_the_batch_of_one():
    fields = {"max_shift": 2, "flip": True, "batch_size": 5}
    whole = batches(**fields).batch(7)
    shares = [batches(**fields, host_index=i, host_count=2).batch(7) for i in range(2)]
    assert [len(share["labels"]) for share in shares] == [3, 3]
    assert shares[1]["weights"].tolist() == [1, 1, 0]
    assert not shares[1]["images"][2].any()
    for i, share in enumerate(shares):
        count = int(share["weights"].sum())
        for name, x in share.items():
            np.testing.assert_array_equal(x[:count], whole[name][i::2])


def test_evaluation_sees_each_image_once_in_order():
    found = list(eval_batches(SOURCE, 4))
    assert [len(batch["labels"]) for batch in found] == [4, 4, 4]
    assert found[-1]["weights"].tolist() == [1, 1, 0, 0]
    labels = np.concatenate([batch["labels"][batch["weights"] > 0] for batch in found])
    assert labels.tolist() == list(range(SIZE))
    assert not found[-1]["images"][2:].any()


def test_shift_against_loops():
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


def test_changes_are_those_that_the_config_names():
    rng = np.random.default_rng(0)
    images = rng.integers(1, 9, (400, 3, 3, 1))

    def changed(**fields):
        config, mine = ImageDataConfig(**fields), slice(None)
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
def test_changes_follow_from_seed_and_step(fields):
    same = ArrayImages(np.repeat(PIXELS[:1], SIZE, axis=0), np.arange(SIZE), SOURCE.label_names, 255.0)
    config = ImageDataConfig(batch_size=SIZE, **fields)

    def changed(seed, step):
        return ImageBatches(same, config, seed).batch(step)["images"]

    np.testing.assert_array_equal(changed(3, 5), changed(3, 5))
    assert not np.array_equal(changed(3, 5), changed(4, 5))
    assert not np.array_equal(changed(3, 5), changed(3, 6))
