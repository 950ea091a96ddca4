"""BPE dropout (Provilkov et al. 2020): texts are tokenised several times, and each time drops other merges.

The texts are tokenised before training instead of at each step. Reading a batch is therefore as fast as
without dropout, and the batch depends only on the step and the seed. SentencePiece can sample as well, but
from version 0.2.2 on its seed fixes the samples only within a process.
"""

import random
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tfm.data.tokenizers.protocol import Tokenizer, has_separate_source
from tfm.data.tokenizers.word_pieces import WORD_START, WordPieces
from tfm.errors import UserError


class SampledWordPieces:
    """A tokenizer that drops merges at random, with the interface that `TokenCache.open` needs.

    The ids of a text depend only on the texts of this call of `encode`, the probability and the seed.
    They are the same on every machine.

    Args:
      tokenizer: the tokenizer with the vocabulary.
      dropout: probability that a merge is dropped at each step.
      seed: seed of the random numbers.

    Raises:
      UserError: if the tokenizer is not byte-pair encoding of SentencePiece.
    """

    def __init__(self, tokenizer: Tokenizer, dropout: float, seed: int):
        is_separate = has_separate_source(tokenizer)
        if not isinstance(tokenizer, WordPieces) or not tokenizer.is_bpe or is_separate:
            raise UserError(
                "data.subword_dropout requires byte-pair encoding of SentencePiece for both languages "
                "together, but data.tokenizer is of another type. Set data.subword_dropout=0, or "
                "data.tokenizer=word_pieces."
            )
        self._tokenizer, self._dropout, self._seed = tokenizer, dropout, seed
        self.fingerprint = f"{tokenizer.fingerprint} dropout {dropout} seed {seed}"

    def __len__(self):
        return len(self._tokenizer)

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """See `Tokenizer.encode`."""
        rng, tokenizer = random.Random(self._seed), self._tokenizer
        return [
            [
                tokenizer.piece_ids[piece]
                for symbols in self._words_of(ids)
                for piece in merge_with_dropout(symbols, tokenizer.merge_scores, self._dropout, rng)
            ]
            for ids in tokenizer.encode(texts)
        ]

    def _words_of(self, ids: Iterable[int]) -> list[list[str]]:
        """Returns the words of a text as lists of characters. Pieces that no merge creates stay whole."""
        words: list[list[str]] = []
        for piece in self._tokenizer.pieces(ids):
            if not words or piece.startswith(WORD_START):
                words.append([])
            words[-1] += piece if piece in self._tokenizer.merge_scores else [piece]
        return words


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


def derive_seed(seed: int, version: int) -> int:
    """Returns the seed of a random tokenisation, 31 bits.

    Args:
      seed: seed of the run.
      version: number of the tokenisation.
    """
    return int(np.random.SeedSequence((seed, version)).generate_state(1)[0] >> 1)
