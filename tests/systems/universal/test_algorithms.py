"""Tests of the distributions of generated pairs: lengths, symbols and digits by their frequencies."""

import collections

import pytest

from tfm.data.config import PairsConfig
from tfm.systems.universal.algorithms import add, copy, reverse

SYMBOLS = "abcdefghijklmnopqrst"
SIZES = {"train": 20_000, "validation": 200, "test": 200, "double": 200, "quadruple": 200}


def read(function, split="train"):
    """Returns the sources of a split as lists of symbols."""
    return [source.split(" ") for source, _ in function(PairsConfig(), split)]


def is_uniform(counts, keys):
    """Returns whether exactly these keys are equally frequent, except for chance."""
    expected = sum(counts.values()) / len(keys)
    return counts.keys() == set(keys) and all(
        abs(count - expected) < 5 * expected**0.5 for count in counts.values()
    )


@pytest.mark.parametrize("function", [copy, reverse])
def test_all_lengths_and_all_symbols_are_equally_frequent(function):
    sources = read(function)
    assert is_uniform(collections.Counter(map(len, sources)), range(1, 11))
    assert is_uniform(collections.Counter(symbol for source in sources for symbol in source), SYMBOLS)
    last = collections.Counter(source[-1] for source in sources)
    assert is_uniform(last, SYMBOLS)


def test_the_numbers_of_a_sum_have_equally_many_digits_of_equal_frequency():
    """A source of n symbols has two numbers of (n - 1) / 2 digits, at least 1, so n of 1 and 2 count as 3."""
    pairs = ["".join(source).split("+") for source in read(add)]
    assert all(len(first) == len(second) for first, second in pairs)
    sizes = collections.Counter(len(first) for first, _ in pairs)
    assert sizes.keys() == {1, 2, 3, 4}
    for size, lengths in {1: (1, 2, 3, 4), 2: (5, 6), 3: (7, 8), 4: (9, 10)}.items():
        assert sizes[size] == pytest.approx(20_000 * len(lengths) / 10, rel=0.05)
    for place in range(4):
        for number in range(2):
            counts = collections.Counter(pair[number][place] for pair in pairs if len(pair[number]) > place)
            assert is_uniform(counts, "0123456789")


def test_the_highest_digit_of_a_sum_is_not_0_unless_the_sum_is():
    targets = [target.split(" ") for _, target in add(PairsConfig(), "train")]
    assert all(digits[-1] != "0" or len(digits) == 1 for digits in targets)


@pytest.mark.parametrize("function", [copy, reverse, add])
def test_splits_have_their_sizes(function):
    assert {split: len(read(function, split)) for split in SIZES} == SIZES


@pytest.mark.parametrize("function", [copy, reverse, add])
def test_long_sources_of_validation_are_not_in_training(function):
    """Short sources are so few that they are in both splits."""
    known = set(map(tuple, read(function)))
    validation = [tuple(source) for source in read(function, "validation") if len(source) >= 8]
    assert len(validation) > 20
    assert not known & set(validation)


def test_test_splits_have_the_length_of_training_and_two_and_four_times_this_length():
    lengths = [{len(source) for source in read(copy, split)} for split in ("test", "double", "quadruple")]
    assert lengths == [{10}, {20}, {40}]
