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
SHOWN_CHARACTERS_BEFORE = 20  # before the first difference of two texts
MIN_RESTORED_SHARE = 0.75  # of the words of the texts
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
    original, restored = _cut_around_difference(*changed[0])
    share = share_of_words(originals, decoded)
    if share < MIN_RESTORED_SHARE:
        raise UserError(
            f"The tokenizer restores only {share:.0%} of the words of the training texts. For example, "
            f"{original!r} becomes {restored!r}. Use a tokenizer for this language, with a decoder. A "
            "tokenizer.json has it in the field decoder."
        )
    log.warning(
        "The tokenizer changes %s of the first %s training texts. For example, %r becomes %r. Scores of the "
        "texts cannot be compared with other tokenizers",
        f"{len(changed):,}",
        f"{len(originals):,}",
        original,
        restored,
    )


def _cut_around_difference(original: str, restored: str) -> tuple[str, str]:
    """Returns the parts of two texts that show their first difference."""
    differences = (i for i, pair in enumerate(zip(original, restored, strict=False)) if pair[0] != pair[1])
    place = next(differences, min(len(original), len(restored)))
    start = max(place - SHOWN_CHARACTERS_BEFORE, 0)
    shown = slice(start, start + MAX_SHOWN_CHARACTERS)
    return original[shown], restored[shown]


def share_of_words(originals: Sequence[str], restored: Sequence[str]) -> float:
    """Returns the share of the words of texts that are in the restored texts, without case and accents."""
    counts = [(_count_words(a), _count_words(b)) for a, b in zip(originals, restored, strict=True)]
    total = sum(words.total() for words, _ in counts)
    if total == 0:
        return 1.0
    return sum((words & restored_words).total() for words, restored_words in counts) / total


def _count_words(text: str) -> Counter[str]:
    """Returns how often each word occurs, without case, accents and compatibility forms."""
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    letters = "".join(letter for letter in decomposed if not unicodedata.combining(letter))
    return Counter(WORD.findall(letters))
