"""The normalization of texts by a new vocabulary and of the references of an evaluation."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import sentencepiece

from tfm.data.config import NMT_NFKC, NMT_NFKC_QUOTES

EXACT: dict[str, Any] = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
# Phones and word processors write these characters in place of the characters of a keyboard. A long dash has
# no blanks around it, so that the words next to it would become one word.
KEYBOARD = {
    **dict.fromkeys("\u2018\u2019\u201a\u201b", "'"),
    **dict.fromkeys("\u201c\u201d\u201e\u201f", '"'),
    **dict.fromkeys("\u2010\u2011\u2012\u2013", "-"),
    **dict.fromkeys("\u2014\u2015", " - "),
}


@contextlib.contextmanager
def normalization_options(rule: str) -> Iterator[dict[str, Any]]:
    """Yields the options with which SentencePiece trains a model that normalizes texts.

    Args:
      rule: one of `NORMALIZATIONS`.
    """
    if rule == NMT_NFKC_QUOTES:
        changes = dict(_load_rule(NMT_NFKC).decompile()) | KEYBOARD
        with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="ascii") as file:
            file.writelines(f"{_to_hex(text)}\t{_to_hex(folded)}\n" for text, folded in changes.items())
            file.flush()
            yield {"normalization_rule_tsv": file.name}
    else:
        yield EXACT if rule == "none" else {"normalization_rule_name": rule}


def make_normalizer(rule: str) -> Callable[[str], str]:
    """Returns the function that normalizes a text as a vocabulary with this rule does.

    Args:
      rule: one of `NORMALIZATIONS`. "none" returns every text as it is.
    """
    if rule == "none":
        return str
    normalize = _load_rule(NMT_NFKC).normalize
    if rule == NMT_NFKC:
        return normalize
    keyboard = str.maketrans(KEYBOARD)
    return lambda text: normalize(text.translate(keyboard))


def _load_rule(name: str) -> sentencepiece.SentencePieceNormalizer:
    """Returns a normalizer of SentencePiece that folds white space, too."""
    return sentencepiece.SentencePieceNormalizer(
        rule_name=name, remove_extra_whitespaces=True, escape_whitespaces=False, add_dummy_prefix=False
    )


def _to_hex(text: str) -> str:
    """Returns the code points of a text as a file of rules has them."""
    return " ".join(f"{ord(character):X}" for character in text)
