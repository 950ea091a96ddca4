"""Tests of the built-in English text: training contains nothing of the held-out splits."""

from pydoc_data.topics import topics

from tfm.datasets import pydoc_topics
from tfm.datasets.pydoc_topics import SPLITS, documents, drop_repeats, group_labels, split_labels

LONG, OTHER = "a paragraph " * 5 + "end", "another one " * 5 + "end"


def test_every_text_is_in_exactly_one_split():
    found = split_labels(topics)
    assert sorted(label for split in SPLITS for label in found[split]) == sorted(topics)


def test_held_out_splits_have_nearly_their_maximum_size():
    total = sum(map(len, topics.values()))
    for split in ("test", "validation"):
        size = sum(map(len, documents(split)))
        assert 0.8 * pydoc_topics.HELD_OUT * total < size <= pydoc_topics.HELD_OUT * total


def test_repeated_paragraphs_are_dropped_within_a_split():
    assert drop_repeats([f"a\n\n{LONG}\n\nb", LONG, f"{LONG}\n\na", f"{LONG}\n\n{OTHER}"]) == [
        f"a\n\n{LONG}\n\nb",
        OTHER,
    ]
    for characters, repetitions in ((39, 2), (40, 1)):
        paragraph = "x" * characters
        (text,) = drop_repeats([f"{LONG}\n\n{paragraph}\n\n{paragraph}"])
        assert text.split("\n\n").count(paragraph) == repetitions
    for split in SPLITS:
        parts = [part.strip() for text in documents(split) for part in text.split("\n\n")]
        long = [part for part in parts if len(part) >= pydoc_topics.SHARED_CHARACTERS]
        assert len(long) == len(set(long))
        whole = {
            part.strip() for label in split_labels(topics)[split] for part in topics[label].split("\n\n")
        }
        assert set(long) == {part for part in whole if len(part) >= pydoc_topics.SHARED_CHARACTERS}


def test_splits_share_no_paragraph():
    paragraphs = {
        split: {part.strip() for text in documents(split) for part in text.split("\n\n")} for split in SPLITS
    }
    for first, second in (("test", "train"), ("validation", "train"), ("test", "validation")):
        shared = paragraphs[first] & paragraphs[second]
        assert all(len(part) < pydoc_topics.SHARED_CHARACTERS for part in shared)


def test_texts_with_shared_paragraphs_form_a_group():
    one, two = "a paragraph" * 5, "another one" * 5
    texts = {"d": "alone", "b": f"{one}\n\n{two}", "c": f"x\n\n{two}\n\ny", "a": one}
    assert group_labels(texts) == [["a", "b", "c"], ["d"]]
    assert group_labels(dict(reversed(texts.items()))) == [["a", "b", "c"], ["d"]]
