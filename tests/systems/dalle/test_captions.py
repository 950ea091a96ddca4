"""Tests of the captioned pictures by an independent reading of what they show."""

import collections

import numpy as np
import pytest
import sklearn.datasets

from tfm.systems.dalle.captions import CaptionedDigits, describe_text

COLOURS = {"red": "100", "green": "010", "blue": "001", "yellow": "110", "magenta": "101", "cyan": "011"}
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
COUNT = 600


def read_cell(cell, digits):
    """Returns the colour and the name of the digit of a cell [8, 8, 3] from 0 to 2. None is an empty cell."""
    shades = cell.max(-1)
    if not shades.any():
        return None
    channels = "".join(str(int(cell[..., channel].any())) for channel in range(3))
    for channel, is_bright in enumerate(channels):
        np.testing.assert_array_equal(cell[..., channel], shades if is_bright == "1" else 0)
    (colour,) = [name for name, code in COLOURS.items() if code == channels]
    return colour, NUMBERS[digits[(shades * 8).astype(int).tobytes()]]


def read_picture(image, digits):
    """Returns {(row, column): (colour, name)} of the two digits of a picture [16, 16, 3] from -1 to 1."""
    found = {}
    for row, column in np.ndindex(2, 2):
        cell = image[8 * row : 8 * row + 8, 8 * column : 8 * column + 8] + 1
        if side := read_cell(cell, digits):
            found[row, column] = side
    return found


def describe(first, second):
    """Yields the relations between two cells (row, column)."""
    if first[1] != second[1]:
        yield "left of" if first[1] < second[1] else "right of"
    if first[0] != second[0]:
        yield "above" if first[0] < second[0] else "below"


@pytest.fixture(scope="module")
def digits():
    """Returns {bytes of the shades: class} of scikit-learn's digits."""
    data = sklearn.datasets.load_digits()
    return {image.astype(int).tobytes(): label for image, label in zip(data.images, data.target, strict=True)}


@pytest.fixture(scope="module")
def batch():
    captions = CaptionedDigits("train")
    return captions.assemble([captions.make(5, number) for number in range(COUNT)], COUNT + 2)


@pytest.fixture(scope="module")
def rows(batch, digits):
    """Returns (words of the caption, what the picture shows) of each picture."""
    captions = [describe_text(text) for text in batch["text"][:COUNT]]
    return [
        (caption.replace(" of", "-of").split(), read_picture(image, digits))
        for caption, image in zip(captions, batch["images"], strict=False)
    ]


def find_cells(words, shown):
    """Yields the cells of the first and of the second digit of a caption. Equal digits have two orders."""
    for first, second in (tuple(shown), tuple(shown)[::-1]):
        if shown[first] == tuple(words[:2]) and shown[second] == tuple(words[3:]):
            yield first, second


def test_captions_name_what_an_independent_reader_sees(rows):
    for words, shown in rows:
        relation = words[2].replace("-", " ")
        assert any(relation in describe(*cells) for cells in find_cells(words, shown)), (words, shown)


def test_each_relation_occurs_in_a_quarter_of_the_captions(rows):
    counts = collections.Counter(words[2] for words, _ in rows)
    assert counts.keys() == {"left-of", "right-of", "above", "below"}
    assert all(abs(count - COUNT / 4) < 5 * np.sqrt(COUNT * 3 / 16) for count in counts.values())


@pytest.mark.parametrize("place", [0, 3])
def test_each_colour_occurs_in_a_sixth_of_the_captions(rows, place):
    counts = collections.Counter(words[place] for words, _ in rows)
    assert counts.keys() == COLOURS.keys()
    assert all(abs(count - COUNT / 6) < 5 * np.sqrt(COUNT * 5 / 36) for count in counts.values())


def test_each_number_occurs_in_a_tenth_of_the_captions(rows):
    counts = collections.Counter(word for words, _ in rows for word in (words[1], words[4]))
    assert counts.keys() == set(NUMBERS)
    assert all(abs(count - COUNT / 5) < 6 * np.sqrt(COUNT / 5) for count in counts.values())


def test_each_pair_of_cells_that_a_relation_allows_is_equally_frequent(rows):
    counts = collections.Counter(
        (words[2], *cells)
        for words, shown in rows
        if words[:2] != words[3:]  # the cells of two equal digits have no order
        for cells in find_cells(words, shown)
    )
    assert len(counts) == 4 * 4
    expected = COUNT / 16
    assert all(abs(count - expected) < 5 * np.sqrt(expected) for count in counts.values())


def test_padding_rows_are_zeros(batch):
    assert all(not batch[name][COUNT:].any() for name in ("images", "text", "weights"))
    np.testing.assert_array_equal(batch["weights"][:COUNT], 1)


def test_ids_of_words_begin_after_those_of_special_tokens(batch):
    text = batch["text"][:COUNT]
    assert (text.min(), text.max()) == (3, 2 + len(COLOURS) + len(NUMBERS) + 4)


def test_splits_have_different_digits_and_different_scenes(digits):
    shown, captions = {}, {}
    for split in ("train", "validation", "test"):
        pictures = CaptionedDigits(split)
        examples = [pictures.make(number) for number in range(40)]
        captions[split] = [example.words for example in examples]
        shown[split] = set()
        for image, _ in examples:
            cells = (image + 1).reshape(2, 8, 2, 8, 3).transpose(0, 2, 1, 3, 4).max(-1).reshape(4, 8, 8)
            shown[split] |= {(cell * 8).astype(int).tobytes() for cell in cells if cell.any()}
        assert shown[split] <= digits.keys()
    for one, other in (("train", "validation"), ("train", "test"), ("validation", "test")):
        assert not shown[one] & shown[other]
        pairs = zip(captions[one], captions[other], strict=True)
        same = sum((a[0], a[2]) == (b[0], b[2]) for a, b in pairs)  # first colour and relation
        assert same < 10  # of 40, where independent captions agree in 1 of 24


def test_fingerprints_of_splits_differ():
    assert len({CaptionedDigits(split).fingerprint for split in ("train", "validation", "test")}) == 3
