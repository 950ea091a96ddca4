"""BPE dropout (Provilkov et al. 2020): texts are tokenised several times, and each time drops other merges.

The texts are tokenised before training instead of at each step. Reading a batch is therefore as fast as
without dropout, and the batch depends only on the step and the seed.
"""

from collections.abc import Iterable

import numpy as np

from tfm.data.tokenizer import Tokenizer


class SampledTokenizer:
    """A tokenizer that drops merges at random, with the interface that `TokenCache.open` needs.

    The ids of a text depend only on the texts of the same call of `encode`, the probability and the seed.

    Args:
      tokenizer: the tokenizer with the vocabulary.
      dropout: probability that a merge is dropped.
      seed: seed of the random numbers.
    """

    def __init__(self, tokenizer: Tokenizer, dropout: float, seed: int):
        self._tokenizer, self._dropout, self._seed = tokenizer, dropout, seed
        self.fingerprint = f"{tokenizer.fingerprint} dropout {dropout} seed {seed}"

    def __len__(self):
        return len(self._tokenizer)

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """Returns a list of ids, without special ids, for each text.

        Raises:
          UserError: see `Tokenizer.encode`.
        """
        return self._tokenizer.sample(texts, self._dropout, self._seed)


def derive_seed(seed: int, version: int) -> int:
    """Returns the seed of a random tokenisation, 31 bits.

    Args:
      seed: seed of the run.
      version: number of the tokenisation.
    """
    return int(np.random.SeedSequence((seed, version)).generate_state(1)[0] >> 1)
