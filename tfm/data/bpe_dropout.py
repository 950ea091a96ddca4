"""BPE dropout (Provilkov et al. 2020): a text gets other word pieces each time it is tokenized.

SentencePiece can sample as well, but from version 0.2.2 on its seed fixes the samples only within a process.
"""

import random
from collections.abc import Mapping, Sequence


def merge_with_dropout(
    symbols: Sequence[str], scores: Mapping[str, float], dropout: float, rng: random.Random
) -> list[str]:
    """Merges the symbols of a word into pieces (algorithm 1 of the paper).

    Each step drops every possible merge with the probability `dropout` and applies the best of the others.
    The word is finished when no merge is left.

    Args:
      symbols: the characters of the word, or texts that no merge contains.
      scores: {piece: score}. Among the possible merges the highest score wins, then the leftmost place.
      dropout: probability of dropping a merge. 0 gives the deterministic segmentation.
      rng: generator of random numbers.
    """
    pieces = list(symbols)
    while True:
        best, place = None, 0
        for i in range(len(pieces) - 1):
            score = scores.get(pieces[i] + pieces[i + 1])
            if score is None or (dropout and rng.random() < dropout):
                continue
            if best is None or score > best:
                best, place = score, i
        if best is None:
            return pieces
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
