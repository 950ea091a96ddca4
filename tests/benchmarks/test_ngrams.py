"""Tests of the Kneser-Ney n-grams against the equations of Chen and Goodman 1999."""

import math
import random

import pytest

from benchmarks.ngrams import BEFORE_TEXT, FALLBACK_DISCOUNTS, KneserNey, estimate_discounts

LETTERS = "abcdefgh "
SHORT = "the cat sat on the mat; the dog sat on the log"


def random_text(length):
    """Returns letters, each of which depends on the letter before, so that all counts occur."""
    rng = random.Random(0)
    text = "a"
    for _ in range(length - 1):
        start = 3 * LETTERS.index(text[-1])
        text += (LETTERS * 4)[start + int(rng.expovariate(0.6)) % len(LETTERS)]
    return text


def count(text, ngram, order):
    """Returns the occurrences of an n-gram of the highest order, or the different characters before it."""
    padded = BEFORE_TEXT * (order - 1) + text
    ends = range(order, len(padded) + 1)
    if len(ngram) == order:
        return sum(padded[end - order : end] == ngram for end in ends)
    size = len(ngram) + 1
    return len({padded[end - size] for end in ends if padded[end - size + 1 : end] == ngram})


def textbook_discounts(text, length, order):
    """Returns the discounts of n-grams with `length` characters, equation 26."""
    padded = BEFORE_TEXT * (order - 1) + text
    ngrams = {padded[end - length : end] for end in range(order, len(padded) + 1)}
    counts = [count(text, ngram, order) for ngram in ngrams]
    n1, n2, n3, n4 = (counts.count(number) for number in (1, 2, 3, 4))
    if 0 in (n1, n2, n3, n4):
        return FALLBACK_DISCOUNTS
    y = n1 / (n1 + 2 * n2)
    discounts = 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3
    valid = all(0 < discount <= most for discount, most in zip(discounts, (1, 2, 3), strict=True))
    return discounts if valid else FALLBACK_DISCOUNTS


def textbook(text, alphabet, context, character, order, discounts):
    """Returns the probability by the recursion of equation 24, with counts by search."""
    if len(context) == 0:
        shorter = 1 / len(alphabet)
    else:
        shorter = textbook(text, alphabet, context[1:], character, order, discounts)
    counts = {letter: count(text, context + letter, order) for letter in alphabet}
    total = sum(counts.values())
    if total == 0:
        return shorter
    d1, d2, d3 = discounts[len(context)]
    discount = {letter: [0, d1, d2, d3][min(number, 3)] for letter, number in counts.items()}
    gamma = sum(discount.values()) / total
    return (counts[character] - discount[character]) / total + gamma * shorter


@pytest.mark.parametrize("order", [1, 2, 4])
@pytest.mark.parametrize("text", [SHORT, random_text(150)], ids=["short", "random"])
def test_probabilities_equal_the_textbook(text, order):
    alphabet = sorted({*text, "z"})  # z does not occur
    discounts = [textbook_discounts(text, length + 1, order) for length in range(order)]
    model = KneserNey(text, order, len(alphabet))
    for found, expected in zip(model.discounts, discounts, strict=True):
        assert found == pytest.approx(expected)
    contexts = [(BEFORE_TEXT * order + text)[i : i + order - 1] for i in range(0, 40, 7)]
    for context in [*contexts, ("zat " * order)[: order - 1]]:
        for character in alphabet[::3]:
            expected = textbook(text, alphabet, context, character, order, discounts)
            assert model.probability(context, character) == pytest.approx(expected)


def test_discounts_of_a_large_text_are_estimated():
    discounts = KneserNey(random_text(3000), 5, len(LETTERS)).discounts[-1]
    assert discounts != FALLBACK_DISCOUNTS
    assert all(0 < discount < count for count, discount in enumerate(discounts, 1))
    assert estimate_discounts({"a": {"b": 1}}) == FALLBACK_DISCOUNTS


@pytest.mark.parametrize("order", [1, 3, 6])
def test_probabilities_sum_to_one(order):
    text = random_text(400)
    alphabet = sorted({*text, "z"})
    model = KneserNey(text, order, len(alphabet))
    for context in [BEFORE_TEXT * (order - 1), *("abcab bad"[i : i + order - 1] for i in range(3)), "zzzzz"]:
        context = context[: order - 1]
        assert math.fsum(model.probability(context, letter) for letter in alphabet) == pytest.approx(1)


def test_a_repeated_context_does_not_make_a_character_likely_elsewhere():
    """ "Francisco" follows only "San", so it is unlikely after other words (section 2.7)."""
    text = "xf" * 50 + "ag" + "bg" + "cg" + "dg"
    model = KneserNey(text, 2, len(set(text)))
    assert model.probability("q", "g") > model.probability("q", "f")


def test_bits_are_the_mean_of_the_negative_logarithms():
    model = KneserNey(SHORT, 3, 20)
    expected = -(math.log2(model.probability("\0\0", "t")) + math.log2(model.probability("\0t", "h"))) / 2
    assert model.bits("th") == pytest.approx(expected)
