"""Word alignments from attention, in Pharaoh format ("0-0 1-2"), and their error rate. NumPy only."""

import re
from collections.abc import Iterable, Sequence

import numpy as np

from tfm.errors import UserError

Links = set[tuple[int, int]]  # (source word, target word)
LINK = re.compile(r"(\d{1,9})-(\d{1,9})")


def align_words(attention: np.ndarray, source_words: Sequence[int], target_words: Sequence[int]) -> Links:
    """Links each target word to the source word that it attends to most.

    The attention of a target word is the mean over its pieces. The attention to a source word is the sum over
    its pieces.

    Args:
      attention: float [L, M], weights of target pieces over source pieces. Rows and columns after the last
        piece of a side, for example those of EOS, are ignored.
      source_words, target_words: the number of the word that each piece belongs to, ascending from 0.

    Returns:
      A set with one link (source word, target word) for each target word. Among source words with equal
      attention, the first is linked. The set is empty if a side has no pieces.
    """
    if not source_words or not target_words:
        return set()
    source, target = (
        np.eye(words[-1] + 1)[np.asarray(words)] for words in (source_words, target_words)
    )  # [pieces, words]
    weights = target.T @ attention[: len(target_words), : len(source_words)] @ source
    return {(int(i), j) for j, i in enumerate(weights.argmax(1))}


def to_pharaoh(pairs: Iterable[tuple[int, int]]) -> str:
    """Returns links as sorted text: {(0, 0), (1, 2)} becomes "0-0 1-2"."""
    return " ".join(f"{i}-{j}" for i, j in sorted(pairs))


def from_pharaoh(text: str) -> Links:
    """Reads links from text: "0-0 1-2" becomes {(0, 0), (1, 2)}.

    Raises:
      UserError: if the text has any other form.
    """
    links: Links = set()
    for pair in text.split():
        match = LINK.fullmatch(pair)
        if not match:
            raise UserError(f"Expected an alignment such as '0-0 1-2', got {text!r}.")
        links.add((int(match[1]), int(match[2])))
    return links


def alignment_error_rate(predicted: Sequence[Links], true: Sequence[Links]) -> float:
    """Returns 1 - 2 |A and S| / (|A| + |S|), counted over a corpus.

    A are the predicted links, and S the reference links. This is equation 8 of Och and Ney 2003 if all
    reference links are "sure".

    Args:
      predicted, true: the predicted and the reference links of each sentence pair, as sets of (source word,
        target word). Pairs without reference links are left out.

    Returns:
      A float in [0, 1]. 0 is best, and also the result for a corpus without links.
    """
    pairs = [(a, s) for a, s in zip(predicted, true, strict=True) if s]
    links = sum(len(a) + len(s) for a, s in pairs)
    return 1 - 2 * sum(len(a & s) for a, s in pairs) / links if links else 0.0
