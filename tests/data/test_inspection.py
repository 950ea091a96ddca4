"""Tests of the summary of a split and of the hints that it yields."""

import random
from collections import Counter

import numpy as np
import pytest

from tests.support.tokenizers import make_json
from tfm.data import inspection
from tfm.data.inspection import SplitReader, find_hints, make_histogram, read_split
from tfm.data.tokenizers.characters import Characters
from tfm.data.tokenizers.learning import learn_word_pieces
from tfm.data.tokenizers.tokenizer_json import TokenizerJson

LANGUAGES = ("en", "de")
SENTENCES = [
    ("The dog is in the garden of the house.", "Der Hund ist in dem Garten und das Haus ist groß."),
    ("It was on the table for an hour.", "Es war mit der Katze nicht auf dem Tisch."),
    ("We went to the town and it was late.", "Wir sind zu einer Stadt, die nicht groß ist."),
]


def random_rows(count, seed):
    """Returns rows of very short texts, some of them empty, so that duplicates of every kind are frequent."""
    rng = random.Random(seed)
    return [tuple("".join(rng.choices("ab ä", k=rng.randrange(4))) for _ in range(2)) for _ in range(count)]


def summarize(rows, training=None, languages=LANGUAGES, lengths=None, tokenizer=None):
    """Returns the summary of rows that are read in parts."""
    reader = SplitReader(languages, tokenizer)
    for first in range(0, len(rows), 7):
        reader.add(rows[first : first + 7])
    return reader.summarize("split", training, lengths)


def hashes(rows):
    reader = SplitReader(LANGUAGES)
    reader.add(rows)
    return reader.hashes()


@pytest.mark.parametrize("seed", range(5))
def test_counts_equal_counts_over_plain_lists(seed):
    rows, training = random_rows(60, seed), random_rows(20, seed + 100)
    found = summarize(rows, hashes(training))
    assert found.rows == len(rows)
    assert found.duplicates == len(rows) - len(set(rows))
    targets = {source: {b for a, b in rows if a == source} for source, _ in rows}
    assert found.ambiguous == sum(len(each) > 1 for each in targets.values())
    assert found.empty == sum(not (a.strip() and b.strip()) for a, b in rows)
    assert found.identical == sum(a == b != "" for a, b in rows)
    sources = {a for a, _ in training}
    assert found.overlap == {
        "rows": sum(row in training for row in rows),
        "sources": sum(a in sources for a, _ in rows),
    }
    for side, texts in zip(found.sides, zip(*rows, strict=True), strict=True):
        assert side.empty == sum(not text.split() for text in texts)
        assert side.words == sum(len(text.split()) for text in texts)
        characters = Counter("".join(texts))
        assert (side.characters, side.distinct) == (characters.total(), len(characters))
        row, longest = side.longest
        assert longest == max(map(len, texts)) == len(texts[row - 1])
        assert sum(side.histogram.values()) == len(rows)


def test_histogram_ranges_are_powers_of_two():
    lengths = Counter({0: 1, 1: 2, 2: 3, 3: 4, 4: 5, 7: 6, 8: 7})
    assert make_histogram(lengths) == {"0": 1, "1": 2, "2-3": 7, "4-7": 11, "8-15": 7}


def test_histograms_of_known_lengths_count_tokens():
    tokens = np.array([[1, 9], [4, 2]])
    found = summarize([("a", "b"), ("c", "d")], lengths=tokens)
    assert [side.histogram for side in found.sides] == [
        {"0": 0, "1": 1, "2-3": 0, "4-7": 1},
        {"0": 0, "1": 0, "2-3": 1, "4-7": 0, "8-15": 1},
    ]
    assert {side.unit for side in found.sides} == {"tokens"}


@pytest.fixture
def with_unknown(tmp_path):
    """Returns the summary of two rows whose sides contain 2 and 1 characters that the tokenizer lacks."""
    tokenizer = learn_word_pieces(["the red dog"] * 9 + ["grün"], 275, str(tmp_path / "model"))
    return summarize([("the dogß", "ßß"), ("☃ grün", "red")], tokenizer=tokenizer)


def test_unknown_characters_of_each_side_are_counted(with_unknown):
    assert [sorted(side.unknown) for side in with_unknown.sides] == [[("ß", 1), ("☃", 1)], [("ß", 2)]]


def test_unknown_characters_are_a_hint_that_names_the_side(with_unknown):
    assert [hint.partition(" are unknown")[0] for hint in find_hints(with_unknown)] == [
        "2 characters of 'en'",
        "1 characters of 'de'",
    ]


def test_unknown_characters_of_a_split_with_one_side_are_those_of_the_text(with_unknown):
    without_name = with_unknown._replace(sides=[with_unknown.sides[0]._replace(language="")])
    (hint,) = find_hints(without_name)
    assert hint.startswith("2 characters of the text are unknown")


def test_the_tokenizer_of_each_side_decides_which_characters_are_unknown():
    characters = Characters("abc")
    characters.source = Characters("д")
    sides = summarize([("дa", "дa")], tokenizer=characters).sides
    assert [side.unknown for side in sides] == [[("a", 1)], [("д", 1)]]


def test_characters_list_what_their_vocabulary_lacks():
    assert Characters("abc").unknown_characters("abxc\n") == ["x", "\n"]
    assert Characters("abc").unknown_characters("") == []
    assert Characters().unknown_characters("abc") == []


@pytest.mark.parametrize("rows_at_a_time", [1, 3])
def test_unknown_words_of_a_vocabulary_of_words_are_counted(rows_at_a_time):
    """Single letters are no words of the vocabulary, but known words contain them."""
    tokenizer = TokenizerJson(make_json("words", texts=["the red dog sees a cat"]))
    reader = SplitReader(("",), tokenizer)
    rows = [("the god sees",), ("the god \u2603 sees a dog",), ("a toad \u2603s",)]
    for first in range(0, 3, rows_at_a_time):
        reader.add(rows[first : first + rows_at_a_time])
    split = reader.summarize("test", None, None)
    (side,) = split.sides
    assert (side.unknown, side.unknown_count) == ([("\u2603", 2)], 1)
    assert (side.unknown_words, side.unknown_word_count) == ([("god", 2), ("toad", 1)], 2)
    assert find_hints(split)[-1] == "2 words of the text are unknown to the tokenizer"


def test_empty_repeated_and_identical_rows_yield_hints():
    rows = [(f"{i} the", f"{i} der") for i in range(198)]
    assert find_hints(summarize(rows)) == []
    poor = summarize([*rows, ("x", "x"), ("x", "x"), ("", "y"), ("", "z"), ("ü", " ")], hashes(rows[:3]))
    empty, repeated = find_hints(poor)
    assert empty.startswith("1.5 % of the rows ")
    assert repeated.startswith("3 rows ")
    copies = summarize([*rows, *[("a", "a")] * 5])
    equal, repeated = find_hints(copies)
    assert equal.startswith("2.5 % of the rows ")
    assert repeated.startswith("2.0 % of the rows ")


def test_documents_have_one_side():
    found = summarize([("the cat",), ("the cat",), ("",)], languages=("",))
    assert (found.rows, found.duplicates, found.identical, len(found.sides)) == (3, 1, 0, 1)
    assert any(hint.startswith("33.3 % of the rows ") for hint in find_hints(found))


def test_progress_is_reported(monkeypatch):
    monkeypatch.setattr(inspection, "CHUNK_ROWS", 5)
    monkeypatch.setattr(inspection, "PROGRESS_SECONDS", -1)
    lines = []
    read_split(SENTENCES * 4, LANGUAGES, lines.append)
    assert [line.split(" rows")[0] for line in lines] == ["Read 5 of 12", "Read 10 of 12", "Read 12 of 12"]


def test_duplicates_and_overlap_of_examples_are_counted_by_their_hashes():
    training = inspection.Summary("train", "3 images", [], {}, [], np.array([1, 2, 3], np.uint64))
    split = inspection.Summary("test", "4 images", [("sizes", "8 x 8")], {"images": 4}, [])
    compared = inspection.compare_with_training(
        split._replace(hashes=np.array([2, 9, 9, 3], np.uint64)), training
    )
    assert compared.values == {"images": 4, "duplicates": 1, "overlap": 2}
    assert [name for name, _ in compared.lines] == ["sizes", "duplicates", "overlap"]
    assert compared.hints == ["2 examples are also in the training split, so scores are too good"]
    assert inspection.compare_with_training(split, training) == split
