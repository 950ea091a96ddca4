"""BPE dropout (Provilkov et al. 2020): texts tokenised several times, each time with other merges left out.

Segmentations are made before training, not at each step: so reading costs as little as without, and the
batch of a step depends on nothing but the step and the seed.
"""

import bisect
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tfm.data.batching import Batch, TrainBatches
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


class AlternatingBatches:
    """Epochs of several `TrainBatches` in turn: epoch e is one of number e modulo how many there are.

    Their epochs may have different numbers of batches. The methods are those of `TrainBatches`.
    """

    def __init__(self, versions: Sequence[TrainBatches]):
        self._versions = versions
        self._ends = np.cumsum([version.batches for version in versions]).tolist()

    def batch(self, step: int) -> Batch:
        """The batch of `step`, counted from 0 over all epochs."""
        version, own_step = self._find(step)
        return self._versions[version].batch(own_step)

    def describe(self, step: int) -> dict[str, Any]:
        """Where the batch of `step` comes from, and which of the segmentations it has."""
        version, own_step = self._find(step)
        found = self._versions[version].describe(own_step)
        return found | {"epoch": self.epoch_of(step), "segmentation": version}

    def epoch_of(self, step: int) -> int:
        """The epoch, counted from 0, that has the batch of `step`."""
        version, own_step = self._find(step)
        return self._versions[version].epoch_of(own_step) * len(self._versions) + version

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """All shapes (rows, width) of this host's batches."""
        return sorted({shape for version in self._versions for shape in version.shapes})

    def largest_batch(self) -> Batch:
        """A batch of zeros of the largest shape."""
        largest = (version.largest_batch() for version in self._versions)
        return max(largest, key=lambda batch: math.prod(batch["inputs"].shape))

    @property
    def padding_fraction(self) -> float:
        """Mean over the segmentations."""
        return float(np.mean([version.padding_fraction for version in self._versions]))

    @property
    def batches(self) -> int:
        """Batches of an epoch, on average."""
        return round(self._ends[-1] / len(self._versions))

    @property
    def pairs(self) -> int:
        """Usable pairs, of the segmentation that has the fewest."""
        return min(version.pairs for version in self._versions)

    def _find(self, step):
        """(version, its own step) of a step over all epochs."""
        cycle, place = divmod(step, self._ends[-1])
        version = bisect.bisect_right(self._ends, place)
        before = self._ends[version - 1] if version else 0
        return version, cycle * self._versions[version].batches + place - before


def derive_seed(seed: int, version: int) -> int:
    """The seed of a segmentation: 31 bits that the seed of the run and its number decide."""
    return int(np.random.SeedSequence((seed, version)).generate_state(1)[0] >> 1)
