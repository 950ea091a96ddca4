"""Words of tokens, and tokens of two texts that correspond."""

import pytest

from tfm.data.tokenizers.characters import Characters
from tfm.visualize import words


@pytest.mark.parametrize(
    ("labels", "numbers"),
    [
        ([], []),
        (["▁The", "▁ani", "mal", ".", "</s>"], [0, 1, 1, 1, 2]),
        (["<s>", "Das", "▁Tier"], [0, 1, 2]),
        (["▁", "<0xF0>", "<0x9F>", "<0x90>", "<0x95>", "!"], [0] * 6),
        (["▁a", "<0xFF>", "▁"], [0, 0, 1]),
        (["▁</script>", "<b>"], [0, 0]),
    ],
)
def test_a_word_begins_with_a_blank_and_at_special_tokens(labels, numbers):
    assert words.number_words(labels) == numbers


@pytest.mark.parametrize(
    ("known", "text", "expected"),
    [("", "läuft ab", ["läuft", "ab"]), ("abc ", "ab \U0001f415", ["ab", "\U0001f415"]), ("", "", [])],
)
def test_characters_and_bytes_become_words(known, text, expected):
    tokenizer = Characters(known)
    ids = [1, *tokenizer.encode([text])[0], 2]
    assert words.word_texts(tokenizer, ids) == ["<s>", *expected, "</s>"]
    labels = words.label_tokens(tokenizer, ids)
    assert len(labels) == len(ids)
    assert labels.count("▁") == text.count(" ")


class Pieces:
    """A tokenizer that joins pieces, and decodes special pieces and blanks to nothing."""

    PIECES = ("<pad>", "<s>", "</s>", "▁ani", "mal", "▁", "<unk>", "▁</script>")

    def pieces(self, ids):
        return [self.PIECES[i] for i in ids]

    def decode(self, ids):
        return "".join(piece for i, piece in enumerate(self.pieces(ids)) if ids[i] > 2).replace("▁", " ")


def test_a_word_without_text_is_named_by_its_pieces():
    tokenizer, ids = Pieces(), [1, 3, 4, 5, 7, 6, 2]
    assert words.label_tokens(tokenizer, ids) == ["<s>", "▁ani", "mal", "▁", "▁</script>", "<unk>", "</s>"]
    assert words.word_texts(tokenizer, ids) == ["<s>", "animal", "▁", "</script>", "<unk>", "</s>"]


def test_tokens_that_differ_in_place_correspond():
    first, second = ["it", "was", "too", "tired", "."], ["it", "was", "too", "wide", "."]
    assert words.align_tokens(first, second) == [(i, i) for i in range(5)]


def test_tokens_of_gaps_have_no_partner():
    first, second = ["the", "dog", "sleeps", "."], ["the", "big", "red", "dog", "sleeps", "."]
    assert words.align_tokens(first, second) == [(0, 0), (1, 3), (2, 4), (3, 5)]
    assert words.align_tokens([], second) == []
