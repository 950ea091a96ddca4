"""BPE dropout (Provilkov et al. 2020): texts tokenised several times, each time with other merges left out.

Segmentations are made before training, not at each step: so reading costs as little as without, and the
batch of a step depends on nothing but the step and the seed.
"""

from collections.abc import Iterable

import numpy as np

from tfm.data.tokenizer import Tokenizer


class SampledTokenizer:
    """Encodes as a `Tokenizer` does, but leaves out each merge with a probability; see `TokenCache.open`.

    The pieces of a text depend on the texts that are encoded with it, the probability and the seed alone.

    Args:
      tokenizer: of the vocabulary.
      dropout: probability that a merge is left out.
      seed: of this segmentation.
    """

    def __init__(self, tokenizer: Tokenizer, dropout: float, seed: int):
        self._tokenizer, self._dropout, self._seed = tokenizer, dropout, seed
        self.fingerprint = f"{tokenizer.fingerprint} dropout {dropout} seed {seed}"

    def __len__(self):
        return len(self._tokenizer)

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """Texts -> lists of ids, without special ids; raises as `Tokenizer.encode`."""
        return self._tokenizer.sample(texts, self._dropout, self._seed)


def derive_seed(seed: int, version: int) -> int:
    """The seed of a segmentation: 31 bits that the seed of the run and its number decide."""
    return int(np.random.SeedSequence((seed, version)).generate_state(1)[0] >> 1)
