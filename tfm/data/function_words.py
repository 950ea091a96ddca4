"""A guess at the language of a text, from frequent function words. A hint, no language identification."""

from collections import Counter

# Language -> some of its most frequent words, few of which are words of another of them.
WORDS: dict[str, frozenset[str]] = {
    language: frozenset(words.split())
    for language, words in {
        "de": "der die das und ist nicht ein eine zu mit den von dem auf für sich",
        "en": "the of and to is that for it with was on are this be at by",
        "es": "el los las una del por con es para su lo como más pero está",
        "fr": "les des et est une dans pour pas du sur au il ce qui ne sont",
        "it": "il di che è per non della sono gli con dei nel più alla questo",
        "nl": "het een van en dat niet zijn op voor ook te aan maar bij wordt",
        "pt": "não uma os do da em para com mais dos das ao pelo são seu",
    }.items()
}
LANGUAGES_OF: dict[str, list[str]] = {}
for _language, _words in WORDS.items():
    for _word in _words:
        LANGUAGES_OF.setdefault(_word, []).append(_language)
PUNCTUATION = ".,;:!?\"'()[]«»„“”‚‘’…-–"
CLEAR = 2  # words of a language in a text, and as many times those of any other


def count_function_words(text: str) -> tuple[Counter[str], int]:
    """(language -> its function words in a text, all words of the text), whatever the case of letters."""
    words = [word.strip(PUNCTUATION) for word in text.lower().split()]
    return Counter(language for word in words for language in LANGUAGES_OF.get(word, ())), len(words)


def guess_language(counts: Counter[str]) -> str:
    """The language with at least two function words and twice as many as any other; "" where none is so.

    Args:
      counts: language -> its function words.
    """
    (best, most), (_, second) = (*counts.most_common(2), ("", 0), ("", 0))[:2]
    return best if most >= CLEAR and most >= CLEAR * second else ""
