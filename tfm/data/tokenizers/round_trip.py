"""What a tokenizer loses: texts are encoded, decoded and compared."""

import itertools
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

from tfm.data.tokenizers.protocol import Tokenizer
from tfm.errors import UserError

MAX_CHECKED_TEXTS = 1000
MAX_CHECKED_CHARACTERS = 2000  # of each text
MAX_SHOWN_CHARACTERS = 60
LEAST_WORDS = 0.75  # share of the words that a tokenizer must restore
# A word, or a character of a script without spaces. U+2581 belongs to a word, because tokenizers write it
# in place of a space.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
WORD = re.compile(rf"[{UNSPACED}]|(?:[^\W{UNSPACED}]|\u2581)+")
log = logging.getLogger(__name__)


def count_changed(tokenizer: Tokenizer, texts: Iterable[str], encoded: Iterable[Sequence[int]]) -> int:
    """Returns the number of texts that differ from the text of their tokens."""
    return sum(text != tokenizer.decode(ids) for text, ids in zip(texts, encoded, strict=True))


def check_round_trip(tokenizer: Tokenizer, texts: Iterable[str]) -> None:
    """Logs a warning if a tokenizer changes some of the first `MAX_CHECKED_TEXTS` texts.

    Raises:
      UserError: if the tokenizer loses too many words, because its decoder is missing or it is for another
        language.
    """
    originals = [text[:MAX_CHECKED_CHARACTERS] for text in itertools.islice(texts, MAX_CHECKED_TEXTS)]
    decoded = [tokenizer.decode(ids) for ids in tokenizer.encode(originals)]
    changed = [pair for pair in zip(originals, decoded, strict=True) if pair[0] != pair[1]]
    if not changed:
        return
    original, restored = (repr(text[:MAX_SHOWN_CHARACTERS]) for text in changed[0])
    share = share_of_words(originals, decoded)
    if share < LEAST_WORDS:
        raise UserError(
            f"The tokenizer restores only {share:.0%} of the words of the training texts. For example, "
            f"{original} becomes {restored}. Use a tokenizer for this language, with a decoder. A "
            "tokenizer.json has it in the field decoder."
        )
    log.warning(
        "The tokenizer changes %s of the first %s training texts. For example, %s becomes %s. Scores of the "
        "texts cannot be compared with other tokenizers",
        f"{len(changed):,}",
        f"{len(originals):,}",
        original,
        restored,
    )


def share_of_words(originals: Sequence[str], restored: Sequence[str]) -> float:
    """Returns the share of the words of texts that are in the restored texts, without case and accents."""
    pairs = [(_count_words(a), _count_words(b)) for a, b in zip(originals, restored, strict=True)]
    total = sum(words.total() for words, _ in pairs)
    return sum((words & others).total() for words, others in pairs) / total if total else 1.0


def _count_words(text: str) -> Counter[str]:
    """Returns how often each word occurs, without case, accents and compatibility forms."""
    plain = unicodedata.normalize("NFKD", text).casefold()
    return Counter(WORD.findall("".join(letter for letter in plain if not unicodedata.combining(letter))))
