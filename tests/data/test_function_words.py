"""Tests of the identification of languages by their function words."""

import pytest

from tfm.data.function_words import WORDS, count_function_words, guess_language


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The dog is in the garden of the house.", "en"),
        ("DER HUND IST NICHT GROSS, und das ist gut.", "de"),
        ("Le chat est dans la maison et les chiens sont ici.", "fr"),
        ("El perro no está en la casa con los gatos.", "es"),
        ("Il cane non è nella casa della nonna.", "it"),
        ("Het huis is niet van een man op zijn fiets.", "nl"),
        ("O cão não está em uma casa com os gatos do João.", "pt"),
        ("Zdravo, ovo je recenica.", ""),
        ("the der", ""),
        ("the of and der die", ""),
        ("the of and to der die", "en"),
        ("", ""),
    ],
)
def test_function_words_identify_the_language(text, language):
    assert guess_language(count_function_words(text)[0]) == language


def test_counts_ignore_case_and_punctuation():
    counts, words = count_function_words("The (THE) cat, „und“ der Hund.")
    assert counts == {"en": 2, "de": 2}
    assert words == 6
    assert sum(len(known) for known in WORDS.values()) > 100
