"""Tests of the words of tokens, and of the correspondence of tokens in two texts."""

import pytest

from tfm.data.tokenizers.characters import Characters
from tfm.data.tokenizers.protocol import PieceTokenizer
from tfm.interpret import words


class Pieces(PieceTokenizer):
    """A tokenizer whose special tokens and blanks have no text."""

    fingerprint = "pieces"

    PIECES = ("<pad>", "<s>", "</s>", "▁ani", "mal", "▁", "<unk>", "▁</script>", "\n")

    def pieces(self, ids):
        return [self.PIECES[i] for i in ids]

    def word_starts(self, ids):
        return [piece.startswith("▁") for piece in self.pieces(ids)]

    def decode(self, ids):
        return "".join(piece for i, piece in zip(ids, self.pieces(ids), strict=True) if i > 2).replace(
            "▁", " "
        )


@pytest.mark.parametrize(
    ("ids", "numbers", "texts"),
    [
        ([], [], []),
        ([1, 4, 3, 4, 2], [0, 1, 2, 2, 3], ["<s>", "mal", "animal", "</s>"]),
        ([3, 5, 7, 6, 4], [0, 1, 2, 3, 4], ["ani", "▁", "</script>", "<unk>", "mal"]),
        ([3, 4, 8, 4], [0, 0, 1, 2], ["animal", "↵", "mal"]),
    ],
)
def test_words_begin_where_the_tokenizer_says_and_at_special_tokens_and_lines(ids, numbers, texts):
    tokenizer = Pieces()
    labels = [piece.replace("\n", "↵") for piece in tokenizer.pieces(ids)]
    assert words.split_words(tokenizer, ids) == (labels, numbers, texts)


@pytest.mark.parametrize(
    ("known", "text", "expected"),
    [("", "läuft ab", ["läuft", "ab"]), ("abc ", "ab \U0001f415", ["ab", "\U0001f415"]), ("", "", [])],
)
def test_characters_and_bytes_are_joined_to_words(known, text, expected):
    tokenizer = Characters(known)
    ids = [1, *tokenizer.encode([text])[0], 2]
    labels, _, texts = words.split_words(tokenizer, ids)
    assert texts == ["<s>", *expected, "</s>"]
    assert (labels[0], labels[-1], len(labels)) == ("<s>", "</s>", len(ids))
    assert labels.count("▁") == text.count(" ")


def test_different_tokens_at_the_same_place_correspond():
    first, second = ["it", "was", "too", "tired", "."], ["it", "was", "too", "wide", "."]
    assert words.align_tokens(first, second) == [(i, i) for i in range(5)]


def test_inserted_tokens_have_no_partner():
    first, second = ["the", "dog", "sleeps", "."], ["the", "big", "red", "dog", "sleeps", "."]
    assert words.align_tokens(first, second) == [(0, 0), (1, 3), (2, 4), (3, 5)]
    assert words.align_tokens([], second) == []
