"""Tests of generated examples: scenes with boxes, captioned pictures, and their batches."""

import numpy as np
import pytest

from tfm.data.batches.generated import GeneratedBatches, evaluation_batches
from tfm.errors import UserError
from tfm.systems.dalle.captions import (
    DIGIT,
    FIRST_WORD_ID,
    RELATIONS,
    CaptionedDigits,
    describe_text,
    place_digits,
)
from tfm.systems.dalle.checker import find_digits, is_satisfied
from tfm.systems.detr.batches import BoxedPicturesConfig
from tfm.systems.detr.scenes import Scenes

SCENES = BoxedPicturesConfig(height=24, width=24, max_objects=3, batch_size=6)


@pytest.fixture(scope="module")
def pictures():
    return CaptionedDigits("test")


@pytest.mark.parametrize("make", [lambda split: Scenes(SCENES, split), CaptionedDigits])
def test_batches_depend_on_seed_and_step_and_divide_over_hosts(make):
    generator = make("train")
    whole = GeneratedBatches(generator, 6, seed=1).batch(4)
    parts = [GeneratedBatches(generator, 6, 1, host_index=host, host_count=2).batch(4) for host in range(2)]
    for name, array in whole.items():
        np.testing.assert_array_equal(array[0::2], parts[0][name])
        np.testing.assert_array_equal(array[1::2], parts[1][name])
    for seed, step in ((2, 4), (1, 5)):
        other = GeneratedBatches(generator, 6, seed).batch(step)
        assert not np.array_equal(other["images"], whole["images"])


def test_evaluated_examples_are_the_same_for_every_batch_size(pictures):
    def images(rows):
        batches = list(evaluation_batches(pictures, 7, rows))
        assert all(len(batch["weights"]) == rows for batch in batches)
        return np.concatenate([batch["images"][batch["weights"] > 0] for batch in batches])

    np.testing.assert_array_equal(images(3), images(7))


def test_unknown_split_is_an_error_that_lists_the_splits():
    with pytest.raises(UserError, match=r"train, validation, test.*'dev'"):
        CaptionedDigits("dev")


def test_boxes_are_the_smallest_that_contain_the_pixels_of_a_digit():
    scenes = Scenes(BoxedPicturesConfig(height=24, width=24, max_objects=1), "train")
    for number in range(20):
        image, ((x, y, width, height),), _ = scenes.make(number)
        rows, columns = np.nonzero(image[..., 0] > -1)
        left, top = 24 * (x - width / 2), 24 * (y - height / 2)
        found = (left, top, left + 24 * width, top + 24 * height)
        assert found == pytest.approx((columns.min(), rows.min(), columns.max() + 1, rows.max() + 1))


def test_overlap_of_the_cells_of_digits_is_limited():
    scenes = Scenes(BoxedPicturesConfig(height=24, width=24, max_objects=3, max_overlap=0.0), "train")
    for number in range(20):
        image, boxes, _ = scenes.make(number)
        inside = np.zeros(image.shape[:2], int)
        for x, y, width, height in 24 * boxes:
            rows = slice(round(y - height / 2), round(y + height / 2))
            inside[rows, round(x - width / 2) : round(x + width / 2)] += 1
        assert inside.max() == 1


@pytest.mark.parametrize("relation", range(len(RELATIONS)))
def test_cells_of_the_digits_have_the_relation(relation):
    for free in np.ndindex(2, 2):
        (row, column), (other_row, other_column) = place_digits(relation, np.array(free))
        holds = {
            "left of": column < other_column,
            "right of": column > other_column,
            "above": row < other_row,
            "below": row > other_row,
        }
        assert holds[RELATIONS[relation]]


def test_generated_pictures_satisfy_their_own_captions_and_not_others(pictures):
    examples = [pictures.make(0, number) for number in range(60)]
    parts = find_digits(np.stack([example.image for example in examples]))
    assert parts.is_readable.all()
    assert parts.shades.shape == (60, 2, DIGIT, DIGIT, 1)
    words = np.array([example.words for example in examples])
    # The classes of the digits, in the order in which they were found.
    digits = np.empty((60, 2), int)
    for index, (first, second) in enumerate(parts.colours):
        both = [(words[index, 0], words[index, 1] - 6), (words[index, 3], words[index, 4] - 6)]
        if both[0][0] == both[1][0]:  # the order of digits of one colour follows from their cells
            axis = 1 if "of" in RELATIONS[words[index, 2] - 16] else 0
            is_first = RELATIONS[words[index, 2] - 16] in ("left of", "above")
            order = np.argsort(parts.cells[index, :, axis])[:: 1 if is_first else -1]
            digits[index, order] = both[0][1], both[1][1]
        else:
            by_colour = dict(both)
            digits[index] = by_colour[first], by_colour[second]
    assert is_satisfied(words, parts, digits).all()
    assert not is_satisfied(words, parts, (digits + 1) % 10).any()
    turned = words.copy()
    opposite = np.array([1, 0, 3, 2])  # of the relations
    turned[:, 2] = 16 + opposite[words[:, 2] - 16]
    same = (words[:, [0, 1]] == words[:, [3, 4]]).all(1)
    assert not is_satisfied(turned, parts, digits)[~same].any()


def test_caption_is_readable(pictures):
    text = pictures.assemble([pictures.make(0, 0)], 1)["text"][0]
    assert text.min() >= FIRST_WORD_ID
    colour, digit, *relation, other_colour, other_digit = describe_text(text).split()
    assert " ".join(relation) in RELATIONS
    assert len({colour, digit, other_colour, other_digit}) >= 2
