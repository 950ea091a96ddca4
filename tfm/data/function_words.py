"""A guess at the language of a text, from frequent function words.

The guess is only a hint. It does not replace language identification.
"""

from collections import Counter

# {language: some of its most frequent words}. Few of the words occur in another of these languages.
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
CLEAR = 2  # minimum number of words of a language, and minimum ratio to the words of any other language


def count_function_words(text: str) -> tuple[Counter[str], int]:
    """Returns ({language: number of its function words}, number of all words) of a text, ignoring case."""
    words = [word.strip(PUNCTUATION) for word in text.lower().split()]
    return Counter(language for word in words for language in LANGUAGES_OF.get(word, ())), len(words)


def guess_language(counts: Counter[str]) -> str:
    """Returns the language with at least 2 function words and twice as many as any other, or "" if none has.

    Args:
      counts: {language: number of its function words}.
    """
    (best, most), (_, second) = (*counts.most_common(2), ("", 0), ("", 0))[:2]
    return best if most >= CLEAR and most >= CLEAR * second else ""
