"""Pairs of a word and a word near it, for the skip-gram model (Mikolov et al. 2013).

A batch is a dict of arrays [B]:

    centers     int32, the word that the model reads
    contexts    int32, the word that it predicts
    weights     float32; 1, or 0 in padding rows

The number of a word is its rank by frequency, from 0.
"""

import collections
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfm.config import check_fields, field
from tfm.data.batches.rows import concatenate_ranges
from tfm.data.batches.schedule import Batch

BLOCK_SENTENCES = 64  # sentences that are drawn at a time
MAX_BLOCKS = 200  # of a batch; subsampling may leave so few words that a batch has padding


@dataclasses.dataclass(frozen=True)
class SkipGramsConfig:
    """The sentences of the built-in language, and how they become pairs of words.

    The defaults of `minimum_count`, `window` and `subsampling` are values of Mikolov et al. 2013 (sections
    2.3 to 4). word2vec.c has a subsampling of 1e-3, and the same other values. We chose the batch size.
    """

    sentences: int = field(
        50_000, "Number of training sentences.", minimum=1, maximum=50_000, unit="sentences"
    )
    minimum_count: int = field(
        5, "Fewest occurrences of a word of the vocabulary.", minimum=1, maximum=10**6, unit="words"
    )
    window: int = field(
        5,
        "Maximum distance of the two words of a pair. The distance of each center is drawn from 1 to window.",
        minimum=1,
        maximum=1000,
        unit="words",
    )
    subsampling: float = field(
        1e-5,
        "Frequency t of a word above which occurrences are removed at random. A word of frequency f stays "
        "with probability sqrt(t / f).",
        minimum=1e-9,
        maximum=1,
    )
    batch_size: int = field(4096, "Pairs of a batch.", minimum=1, maximum=10**7, unit="pairs")

    def __post_init__(self):
        check_fields(self, "data")


def count_words(sentences: Sequence[Sequence[str]], minimum_count: int) -> dict[str, int]:
    """Returns {word: count} of words with at least `minimum_count` occurrences, by falling count."""
    counts = collections.Counter(itertools.chain.from_iterable(sentences))
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {word: count for word, count in ordered if count >= minimum_count}


def keep_probabilities(counts: np.ndarray, subsampling: float) -> np.ndarray:
    """Returns the probability that an occurrence of each word stays, for counts [V] (equation 5)."""
    return np.minimum(1.0, np.sqrt(subsampling * counts.sum() / counts))


def make_pairs(words: np.ndarray, sentences: np.ndarray, reach: np.ndarray) -> np.ndarray:
    """Returns the (center, context) pairs int [pairs, 2] of running words.

    Args:
      words: int [N].
      sentences: int [N], the number of the sentence of each word.
      reach: int [N], the largest distance to a context of each word as a center.
    """
    pairs = [np.zeros((0, 2), words.dtype)]
    for distance in range(1, max(reach, default=0) + 1):
        before, after = words[:-distance], words[distance:]
        is_same = sentences[:-distance] == sentences[distance:]
        forwards = is_same & (reach[:-distance] >= distance)
        backwards = is_same & (reach[distance:] >= distance)
        pairs.append(np.stack([before[forwards], after[forwards]], axis=1))
        pairs.append(np.stack([after[backwards], before[backwards]], axis=1))
    return np.concatenate(pairs)


class SkipGramBatches:
    """An endless sequence of batches of pairs from random sentences, each a function of step, seed and host.

    Args:
      sentences: words of each sentence. Words outside of the vocabulary are left out.
      counts: {word: count} of the vocabulary, see `count_words`.
      config: the data section.
      seed: seed of the run.
      host_index, host_count: host i has the pairs i, i + host_count, ... of each batch.
    """

    def __init__(
        self,
        sentences: Sequence[Sequence[str]],
        counts: Mapping[str, int],
        config: SkipGramsConfig,
        seed: int,
        *,
        host_index: int = 0,
        host_count: int = 1,
    ):
        numbers = {word: number for number, word in enumerate(counts)}
        rows = [[numbers[word] for word in sentence if word in numbers] for sentence in sentences]
        self._lengths = np.array([len(row) for row in rows])
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._words = np.array(list(itertools.chain.from_iterable(rows)), np.int32)
        self._keep = keep_probabilities(np.array(list(counts.values())), config.subsampling)
        self._config, self._seed = config, seed
        self._host_index, self._host_count = host_index, host_count

    def batch(self, step: int) -> Batch:
        """Returns this host's share of the batch of `step`, counted from 0."""
        rng = np.random.default_rng((self._seed, step))
        blocks: list[np.ndarray] = []
        while sum(map(len, blocks)) < self._config.batch_size and len(blocks) < MAX_BLOCKS:
            blocks.append(self._draw_pairs(rng))
        pairs = rng.permutation(np.concatenate(blocks))[: self._config.batch_size]
        return self._assemble(pairs[self._host_index :: self._host_count])

    def _draw_pairs(self, rng: np.random.Generator) -> np.ndarray:
        """Returns the pairs of some random sentences, after the subsampling of frequent words."""
        rows = rng.integers(len(self._lengths), size=BLOCK_SENTENCES)
        words = self._words[concatenate_ranges(self._starts[rows], self._lengths[rows])]
        sentences = np.repeat(np.arange(len(rows)), self._lengths[rows])
        kept = rng.random(len(words)) < self._keep[words]
        reach = rng.integers(1, self._config.window + 1, size=kept.sum())
        return make_pairs(words[kept], sentences[kept], reach)

    def _assemble(self, pairs: np.ndarray) -> Batch:
        """Returns the arrays of pairs, filled up with padding."""
        rows = -(-self._config.batch_size // self._host_count)
        padded = np.zeros((rows, 2), np.int32)
        padded[: len(pairs)] = pairs
        weights = (np.arange(rows) < len(pairs)).astype(np.float32)
        return {"centers": padded[:, 0], "contexts": padded[:, 1], "weights": weights}

    def describe(self, step: int) -> dict[str, Any]:
        """Returns the numbers that determine the pairs of a batch."""
        return {"seed": self._seed, "step": step}

    def largest_batch(self) -> Batch:
        """Returns a batch of padding rows. All batches have its shape."""
        return self._assemble(np.zeros((0, 2), np.int32))
