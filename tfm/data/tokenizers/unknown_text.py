"""Characters and words that a vocabulary lacks: their counts in texts, and a warning that names them."""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence

from tfm.data.config import NMT_NFKC, NMT_NFKC_QUOTES
from tfm.data.tokenizers.normalization import make_normalizer
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.data.tokenizers.word_pieces import WordPieces

FOLDING_RULES = (NMT_NFKC, NMT_NFKC_QUOTES)  # values of data.normalization; the second folds more
MAX_NAMED_PARTS = 20
MAX_SHOWN_CHARACTERS = 60
REPLACE = "Replace them with text that the training data contain"
log = logging.getLogger(__name__)


class UnknownCounter:
    """Counts the characters and the words of texts that a vocabulary lacks, while the texts are read.

    A vocabulary of whole words lacks most single letters. Therefore a character that a known word of the
    texts contains does not count as unknown. An unknown word without unknown characters counts as a word.

    Args:
      tokenizer: the tokenizer with the vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._seen: set[str] = set()
        self._suspects: set[str] = set()  # characters that are unknown outside of words
        self._in_known_words: set[str] = set()
        self._characters: Counter[str] = Counter()
        self._words: Counter[str] = Counter()

    def add(self, texts: Sequence[str]) -> None:
        """Adds the next texts to the counts."""
        characters = Counter("".join(texts))
        new = characters.keys() - self._seen
        self._seen |= new
        self._suspects |= set(self._tokenizer.unknown_characters(sorted(new)))
        if self._suspects.isdisjoint(characters):
            return
        self._characters.update({c: characters[c] for c in characters.keys() & self._suspects})
        words = Counter(
            word for text in texts for word in text.split() if not self._suspects.isdisjoint(word)
        )
        unknown = self._tokenizer.unknown_characters(words)
        self._words.update({word: words[word] for word in unknown})
        self._in_known_words.update(*(words.keys() - set(unknown)))

    def characters(self) -> list[tuple[str, int]]:
        """Returns (character, count) of the unknown characters, the most frequent first."""
        return _sort_by_count({c: n for c, n in self._characters.items() if c not in self._in_known_words})

    def words(self) -> list[tuple[str, int]]:
        """Returns (word, count) of the unknown words without unknown characters, the most frequent first."""
        unknown = self._suspects - self._in_known_words
        return _sort_by_count({word: n for word, n in self._words.items() if unknown.isdisjoint(word)})


def _sort_by_count(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def find_unknown(tokenizer: Tokenizer, texts: Iterable[str]) -> list[str]:
    """Returns the characters and then the words of texts that become bytes or unknown pieces.

    The most frequent are the first, see `UnknownCounter`. Characters that the tokenizer leaves out are not
    listed.
    """
    counter = UnknownCounter(tokenizer)
    counter.add(list(texts))
    characters = [character for character, _ in counter.characters()]
    encoded = zip(characters, tokenizer.encode(characters), strict=True)
    return [character for character, ids in encoded if ids] + [word for word, _ in counter.words()]


def find_unknown_parts(tokenizer: Tokenizer, text: str) -> list[str]:
    """Returns the parts of a text that a vocabulary lacks, to mark them in the text.

    An unknown letter is replaced by the unknown words that contain it, because a vocabulary of whole words
    lacks most single letters. This holds for scripts with upper and lower case, which write spaces.
    """
    unknown_words = tokenizer.unknown_characters(dict.fromkeys(text.split()))
    parts: list[str] = []
    for part in find_unknown(tokenizer, [text]):
        is_cased_letter = len(part) == 1 and part.lower() != part.upper()
        parts += [word for word in unknown_words if part in word] if is_cased_letter else [part]
    return list(dict.fromkeys(parts))


class UnknownTextWarning:
    """Logs a warning about the characters and words of texts that a vocabulary lacks. Names each part once.

    Args:
      outputs: what the model makes of the texts, such as "translations".
      has_normalization: whether the config of the model has the field data.normalization.
    """

    def __init__(self, outputs: str, *, has_normalization: bool):
        self._outputs = outputs
        self._has_normalization = has_normalization
        self._named_parts: set[str] = set()

    def check(self, tokenizer: Tokenizer, texts: Sequence[str]) -> None:
        """Warns of the unknown parts of texts that no earlier warning has named.

        All warnings together name at most `MAX_NAMED_PARTS` parts. After that, there are no warnings.

        Args:
          tokenizer: the tokenizer that encodes the texts.
          texts: texts that the model reads.
        """
        if len(self._named_parts) >= MAX_NAMED_PARTS:
            return
        parts = [part for part in find_unknown(tokenizer, texts) if part not in self._named_parts]
        if not parts:
            return
        shown = parts[: MAX_NAMED_PARTS - len(self._named_parts)]
        self._named_parts.update(shown)
        affected = sum(any(part in text for part in parts) for text in texts)
        log.warning(
            "The vocabulary lacks %s%s, in %s of %s texts. Training has not seen them, so they may spoil the "
            "%s. %s",
            ", ".join(map(describe_part, shown)),
            f" and {len(parts) - len(shown):,} more" if len(parts) > len(shown) else "",
            f"{affected:,}",
            f"{len(texts):,}",
            self._outputs,
            advise(tokenizer, shown) if self._has_normalization else REPLACE,
        )


def describe_part(part: str) -> str:
    """Returns a word in quotes, or a character in quotes with its code, which shows invisible characters."""
    return f"{part!r} (U+{ord(part):04X})" if len(part) == 1 else repr(part[:MAX_SHOWN_CHARACTERS])


def advise(tokenizer: Tokenizer, parts: Sequence[str]) -> str:
    """Returns what the user can do about unknown parts of texts.

    A vocabulary with normalization is only advised for variants of characters that the vocabulary contains.
    """
    if not isinstance(tokenizer, WordPieces):
        return REPLACE
    folded = {rule: _list_foldable(tokenizer, parts, rule) for rule in FOLDING_RULES}
    # The first rule, if both fold the same parts.
    rule = max(FOLDING_RULES, key=lambda rule: len(folded[rule]))
    if not folded[rule]:
        return REPLACE
    shown = ", ".join(map(describe_part, folded[rule]))
    return f"{REPLACE}, or train with data.normalization={rule}, which folds {shown}"


def _list_foldable(tokenizer: Tokenizer, parts: Sequence[str], rule: str) -> list[str]:
    """Returns the parts that a rule folds to characters of the vocabulary."""
    normalize = make_normalizer(rule)
    variants = [part for part in parts if normalize(part) != part]
    return [part for part in variants if not tokenizer.unknown_characters(normalize(part))]
