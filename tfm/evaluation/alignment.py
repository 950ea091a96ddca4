"""Word alignments from attention, in Pharaoh format ("0-0 1-2"), and their error rate. NumPy only."""

from collections.abc import Iterable, Sequence

import numpy as np

from tfm.errors import UserError

Links = set[tuple[int, int]]  # (source word, target word)


def align_words(attention: np.ndarray, source_words: Sequence[int], target_words: Sequence[int]) -> Links:
    """Which source word each target word attends to most.

    Args:
      attention: [L, M], of target pieces over source pieces; more rows or columns, such as of EOS, are left
        out.
      source_words, target_words: the number of the word that each piece belongs to, ascending from 0.

    Returns:
      Set of (source word, target word): one source word for each target word. The attention of a word is the
      mean of its pieces', that to a word the sum over its pieces.
    """
    if not source_words or not target_words:
        return set()
    source, target = (
        np.eye(words[-1] + 1)[words] for words in (source_words, target_words)
    )  # [pieces, words]
    weights = target.T @ attention[: len(target_words), : len(source_words)] @ source
    return {(int(i), j) for j, i in enumerate(weights.argmax(1))}


def to_pharaoh(pairs: Iterable[tuple[int, int]]) -> str:
    """{(0, 0), (1, 2)} -> "0-0 1-2"."""
    return " ".join(f"{i}-{j}" for i, j in sorted(pairs))


def from_pharaoh(text: str) -> Links:
    """ "0-0 1-2" -> {(0, 0), (1, 2)}.

    Raises:
      UserError: it is something else.
    """
    pairs = [pair.split("-") for pair in text.split()]
    if any(len(pair) != 2 or not all(place.isdigit() for place in pair) for pair in pairs):
        raise UserError(f"Expected an alignment such as '0-0 1-2', got {text!r}.")
    return {(int(i), int(j)) for i, j in pairs}


def alignment_error_rate(found: Sequence[Links], true: Sequence[Links]) -> float:
    """1 - 2 |A and S| / (|A| + |S|) over a corpus: Och and Ney 2003, equation 8, where all links are sure.

    Args:
      found, true: as many sets of (source word, target word); a pair without true links counts for nothing.

    Returns:
      Float in [0, 1]; 0 is best.
    """
    pairs = [(a, s) for a, s in zip(found, true, strict=True) if s]
    links = sum(len(a) + len(s) for a, s in pairs)
    return 1 - 2 * sum(len(a & s) for a, s in pairs) / links if links else 0.0
