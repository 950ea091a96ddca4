"""What a tokenizer loses: texts are encoded, decoded and compared."""

import itertools
import logging
import unicodedata
from collections import Counter
from collections.abc import Iterable

from tfm.data.tokenizers.protocol import Tokenizer
from tfm.errors import UserError

MAX_CHECKED_TEXTS = 1000
MAX_CHECKED_CHARACTERS = 2000  # of each text
MAX_SHOWN_CHARACTERS = 60
UNKNOWN_PIECES = ("\u2047", "<unk>", "[UNK]")  # a decoder writes them for characters that it does not know
log = logging.getLogger(__name__)


def check_round_trip(tokenizer: Tokenizer, texts: Iterable[str]) -> None:
    """Logs how many of the first texts a tokenizer changes.

    Raises:
      UserError: if the tokenizer adds characters to most texts, so that its decoder is wrong or missing.
    """
    originals = [text[:MAX_CHECKED_CHARACTERS] for text in itertools.islice(texts, MAX_CHECKED_TEXTS)]
    decoded = [tokenizer.decode(ids) for ids in tokenizer.encode(originals)]
    changed = [pair for pair in zip(originals, decoded, strict=True) if pair[0] != pair[1]]
    if not changed:
        return
    original, restored = (repr(text[:MAX_SHOWN_CHARACTERS]) for text in changed[0])
    if 2 * sum(bool(added_characters(*pair)) for pair in changed) > len(originals):
        raise UserError(
            f"The tokenizer does not decode its tokens: {original} becomes {restored}. Use a tokenizer with "
            "a decoder. A tokenizer.json has it in the field decoder."
        )
    log.warning(
        "The tokenizer changes %s of the first %s training texts. For example, %s becomes %s. Scores of the "
        "texts cannot be compared with other tokenizers",
        f"{len(changed):,}",
        f"{len(originals):,}",
        original,
        restored,
    )


def added_characters(original: str, restored: str) -> Counter[str]:
    """Returns the characters that a restored text adds, without regard to case, accents and white space."""
    for piece in UNKNOWN_PIECES:
        restored = restored.replace(piece, "")
    return _essential_characters(restored) - _essential_characters(original)


def _essential_characters(text: str) -> Counter[str]:
    plain = unicodedata.normalize("NFKD", text.casefold())
    return Counter(letter for letter in plain if not letter.isspace() and not unicodedata.combining(letter))
