"""Tests of training rows that are joined with their neighbours (`data.joined_share`)."""

import dataclasses

import pytest

from tests.support.corpora import text_config, write_text
from tfm.data.source import MAX_JOINED, hold, join_neighbours
from tfm.data.sources.opening import open_corpora, open_pairs, read_sides
from tfm.tasks.translation.data import describe_training_texts

ROWS = [(f"a{n}", f"b{n}") for n in range(9_001)]
SOURCE = hold(ROWS, "rows")


@pytest.mark.parametrize("share", [0.05, 0.36, 0.8, 1.0])
def test_joining_keeps_all_rows_in_order_and_joins_the_configured_share(share):
    joined = list(join_neighbours(SOURCE, share))
    assert [" ".join(side) for side in zip(*joined, strict=True)] == [
        " ".join(s) for s in zip(*ROWS, strict=True)
    ]
    sizes = [len(source.split()) for source, _ in joined]
    assert all(len(target.split()) == size for size, (_, target) in zip(sizes, joined, strict=True))
    assert set(sizes) - {1} == set(range(2, MAX_JOINED + 1))
    assert sum(size for size in sizes if size > 1) / len(ROWS) == pytest.approx(share, rel=0.08)
    assert len(join_neighbours(SOURCE, share)) == len(joined)


@pytest.mark.parametrize("tags", ["", "<x>"])
def test_log_has_the_numbers_of_joined_texts_and_of_pairs(tmp_path, tags):
    write_text(tmp_path, ROWS[:1000])
    config = text_config(tmp_path, joined_share=0.5, tags=tags)
    (texts,) = open_corpora(config, "train")
    expected = f"{len(texts):,} training texts joined from 1,000 pairs"
    assert describe_training_texts(config, len(texts)) == expected


def test_log_names_pairs_if_none_are_joined(tmp_path):
    write_text(tmp_path, ROWS[:10])
    assert describe_training_texts(text_config(tmp_path), 9) == "9 training pairs"


def test_joining_is_deterministic_and_changes_the_fingerprint():
    one, again, other = (join_neighbours(SOURCE, share) for share in (0.4, 0.4, 0.5))
    assert list(one) == list(again)
    assert one.fingerprint == again.fingerprint
    fingerprints = {one.fingerprint, other.fingerprint, SOURCE.fingerprint}
    assert len(fingerprints | {join_neighbours(hold(ROWS, "others"), 0.4).fingerprint}) == 4


def test_rows_with_an_empty_side_are_not_joined():
    rows = [("a", "b"), ("c", ""), ("", "d"), ("e", "f")] * 50
    assert all(
        (not source) or (not target) or len(source.split()) == len(target.split())
        for source, target in join_neighbours(hold(rows, "rows"), 1.0)
    )


def test_only_training_pairs_are_joined(tmp_path):
    for split in ("train", "validation"):
        write_text(tmp_path, ROWS[:50], split)
    plain, joined = text_config(tmp_path), text_config(tmp_path, joined_share=1.0)
    assert list(open_pairs(joined, "validation")) == list(open_pairs(plain, "validation")) == ROWS[:50]
    assert len(open_pairs(joined, "train")) < 50
    (tagged,) = open_corpora(dataclasses.replace(joined, tags="<x>"), "train")
    assert all(source.count("<x>") == 1 for source, _ in tagged)


def test_evaluation_of_the_training_split_reads_the_texts_as_they_are(tmp_path):
    write_text(tmp_path, [("a", "c"), ("b", "d")])
    assert read_sides(text_config(tmp_path, joined_share=1.0), "train") == (["a", "b"], ["c", "d"])
