"""Normalization of texts by the rules of SentencePiece."""

from collections.abc import Callable

import sentencepiece


def make_normalizer(rule: str) -> Callable[[str], str]:
    """Returns the function that normalizes a text as a vocabulary with this rule does.

    Args:
      rule: a value of `data.normalization`. "none" returns every text as it is.
    """
    if rule == "none":
        return str
    return sentencepiece.SentencePieceNormalizer(
        rule_name=rule, remove_extra_whitespaces=True, escape_whitespaces=False, add_dummy_prefix=False
    ).normalize
