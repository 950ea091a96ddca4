"""Tests of the checker of captions by brute force."""

import itertools

import numpy as np
import pytest

from tfm.systems.dalle.captions import WORDS
from tfm.systems.dalle.checker import PictureParts, find_digits, is_satisfied

COLOURS = {"red": "100", "green": "010", "blue": "001", "yellow": "110", "magenta": "101", "cyan": "011"}
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
CELLS = list(np.ndindex(2, 2))


def paint(image, cell, colour, ink):
    """Paints a cell of an image from -1 to 1, with a mean brightness from 0 to 1 and brighter at the top."""
    row, column = cell
    shades = 2 * ink * np.repeat([[1.5], [0.5]], 4, axis=0) * np.ones((8, 8))
    channels = np.array(list(COLOURS[colour]), float)
    image[8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = shades[..., None] * channels - 1


def picture(*cells):
    """Returns a picture of cells (cell, colour, ink)."""
    image = np.full((16, 16, 3), -1.0)
    for cell in cells:
        paint(image, *cell)
    return image


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(CELLS, 2)))
def test_digits_are_found_with_the_brighter_first(first, second):
    names = list(COLOURS)
    images = [picture((first, one, 0.4), (second, other, 0.2)) for one in names for other in names]
    parts = find_digits(np.stack(images))
    assert parts.is_readable.all()
    np.testing.assert_array_equal(parts.cells, [[first, second]] * len(images))
    np.testing.assert_array_equal(parts.colours, list(itertools.product(range(6), repeat=2)))


def test_shades_are_the_brightest_channel_from_minus_1_to_1():
    parts = find_digits(picture(((0, 1), "cyan", 0.4), ((1, 0), "red", 0.2))[None])
    expected = [[2 * 0.4 * 1.5 - 1] * 4 + [2 * 0.4 * 0.5 - 1] * 4, [2 * 0.2 * 1.5 - 1] * 4 + [-0.8] * 4]
    assert parts.shades.shape == (1, 2, 8, 8, 1)
    np.testing.assert_allclose(parts.shades[0, :, :, 3, 0], expected, atol=1e-6)


def test_colour_is_the_nearest_of_the_mean_pixel_after_its_largest_channel_becomes_1():
    image = picture(((0, 0), "red", 0.3), ((1, 1), "red", 0.3))
    image[:8, :8, 1] = 0.7 * (image[:8, :8, 0] + 1) - 1  # nearer to yellow than to red
    image[8:, 8:, 1] = 0.3 * (image[8:, 8:, 0] + 1) - 1
    assert find_digits(image[None]).colours.tolist() == [[3, 0]]


@pytest.mark.parametrize(
    ("inks", "is_readable"),
    [
        ((0.3, 0.3, 0, 0), True),
        ((0.3, 0, 0, 0), False),
        ((0.3, 0.3, 0.3, 0), False),
        ((0.3, 0.3, 0.04, 0), True),
        ((0.3, 0.3, 0.06, 0), False),
        ((0.06, 0.06, 0, 0), True),
        ((0.3, 0.04, 0, 0), False),
        ((0, 0, 0, 0), False),
    ],
)
def test_pictures_with_exactly_two_cells_that_have_a_twentieth_of_the_ink_are_readable(inks, is_readable):
    image = picture(*((cell, "blue", ink) for cell, ink in zip(CELLS, inks, strict=True)))
    assert find_digits(image[None]).is_readable.tolist() == [is_readable]


def holds(relation, first, second):
    """Returns whether a relation holds between two cells (row, column)."""
    (row, column), (other_row, other_column) = first, second
    return {
        "left of": column < other_column,
        "right of": column > other_column,
        "above": row < other_row,
        "below": row > other_row,
    }[relation]


def is_true(words, objects):
    """Returns whether a caption is true of two objects (colour, digit, cell), in any order."""
    colour, number, relation, other_colour, other_number = (WORDS[word] for word in words)
    asked = (colour, number), (other_colour, other_number)
    return any(
        (first[:2], second[:2]) == asked and holds(relation, first[2], second[2])
        for first, second in (objects, objects[::-1])
    )


def test_satisfied_captions_are_those_that_brute_force_finds():
    """Two colours and two digits, in all cells, with all captions."""
    pairs = list(itertools.product((0, 4), (1, 7)))
    scenes = list(itertools.product(pairs, pairs, itertools.permutations(CELLS, 2)))
    captions = [
        (c, 6 + d, 16 + relation, other_c, 6 + other_d)
        for (c, d), relation, (other_c, other_d) in itertools.product(pairs, range(4), pairs)
    ]
    cases = list(itertools.product(captions, scenes))
    words = np.array([caption for caption, _ in cases])
    sides = np.array([(one, other) for _, (one, other, _) in cases])
    cells = np.array([pair for _, (_, _, pair) in cases])
    parts = PictureParts(np.ones(len(cases), bool), cells, sides[..., 0], np.zeros((len(cases), 2, 8, 8, 1)))
    actual = is_satisfied(words, parts, sides[..., 1])
    names = list(COLOURS)
    expected = [
        is_true(
            caption,
            [(names[c], NUMBERS[d], cell) for (c, d), cell in zip((one, other), pair, strict=True)],
        )
        for caption, (one, other, pair) in cases
    ]
    assert 0 < sum(expected) < len(expected)
    np.testing.assert_array_equal(actual, expected)


def test_unreadable_pictures_satisfy_no_caption():
    words = np.array([[0, 6, 16, 1, 7]] * 2)
    cells = np.array([[(0, 0), (0, 1)]] * 2)
    parts = PictureParts(np.array([True, False]), cells, np.array([[0, 1]] * 2), np.zeros((2, 2, 8, 8, 1)))
    assert is_satisfied(words, parts, np.array([[0, 1]] * 2)).tolist() == [True, False]
