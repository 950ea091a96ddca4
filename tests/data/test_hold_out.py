"""Tests that splits of a corpus share no sentence."""

import itertools
import random

import pytest

from tfm.data.hold_out import MAX_GROUP_PAIRS, hold_out

SPLITS = ("validation", "test")


def random_pairs(count, texts, seed):
    """Returns pairs of which many share a source or a target."""
    rng = random.Random(seed)
    return [(f"source {rng.randrange(texts)}", f"target {rng.randrange(texts)}") for _ in range(count)]


def distinct_pairs(count):
    return [(f"source {number}", f"target {number}") for number in range(count)]


def rows_of(rows, assigned, split):
    return [row for row, each in zip(rows, assigned, strict=True) if each == split]


@pytest.mark.parametrize("seed", range(5))
def test_no_two_splits_share_a_source_or_a_target(seed):
    rows = random_pairs(count=300, texts=250, seed=seed)
    assigned = hold_out(rows, SPLITS, count=20, seed=seed)
    for first, second in itertools.combinations(("train", *SPLITS), 2):
        for side in (0, 1):
            shared = {row[side] for row in rows_of(rows, assigned, first)} & {
                row[side] for row in rows_of(rows, assigned, second)
            }
            assert not shared, (first, second, side)


def test_a_held_out_split_has_the_requested_number_of_pairs():
    rows = random_pairs(count=300, texts=250, seed=0)
    assigned = hold_out(rows, SPLITS, count=20, seed=0)
    assert {split: assigned.count(split) for split in SPLITS} == dict.fromkeys(SPLITS, 20)


def test_training_keeps_all_pairs_that_share_nothing_with_held_out_pairs():
    rows = distinct_pairs(100)
    assigned = hold_out(rows, SPLITS, count=10, seed=0)
    assert assigned.count("train") == 80
    assert None not in assigned


def test_pairs_that_are_joined_by_a_chain_stay_together():
    chain = [("a", "x"), ("b", "x"), ("b", "y"), ("c", "y")]
    for seed in range(20):
        assigned = hold_out([*chain, *distinct_pairs(4)], SPLITS, count=2, seed=seed)[: len(chain)]
        assert assigned in (["train"] * 4, ["validation", None, None, None], ["test", None, None, None])


def test_texts_that_differ_in_case_and_punctuation_are_the_same_text():
    rows = [("Go on!", "Weiter!"), ("go on", "Mach weiter."), *distinct_pairs(4)]
    for seed in range(20):
        first, second = hold_out(rows, SPLITS, count=2, seed=seed)[:2]
        assert (first, second) == ("train", "train") or second is None


def test_texts_without_words_are_compared_as_they_are():
    assert (
        hold_out([("!", "?"), ("...", "-"), *distinct_pairs(3)], ("test",), count=3, seed=1).count(None) == 0
    )


def test_repeated_pairs_are_left_out():
    rows = [*distinct_pairs(5), ("Source 0.", "target 0")]
    assert hold_out(rows, ("test",), count=1, seed=0)[-1] is None


def test_a_large_group_is_training_data():
    group = [("yes", f"ja {number}") for number in range(MAX_GROUP_PAIRS + 1)]
    rows = [*group, *distinct_pairs(5)]
    for seed in range(20):
        assert hold_out(rows, ("test",), count=4, seed=seed)[: len(group)] == ["train"] * len(group)


def test_the_seed_decides_the_choice():
    rows = distinct_pairs(100)
    choices = [hold_out(rows, SPLITS, count=10, seed=seed) for seed in (0, 0, 1)]
    assert choices[0] == choices[1] != choices[2]


def test_too_few_groups_are_an_error_with_their_number():
    with pytest.raises(ValueError, match=r"more than 20 .* got 20\."):
        hold_out(distinct_pairs(20), SPLITS, count=10, seed=0)
