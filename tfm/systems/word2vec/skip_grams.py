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
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tfm.config import OnResume, check_fields, field
from tfm.data.batches.rows import concatenate_ranges, find_starts
from tfm.data.batches.schedule import Batch
from tfm.data.config import DataSection, DocumentsConfig, remove_folders

WORDS_FILE = "words.json"  # of a run: a list of [word, count], the most frequent first
BLOCK_SENTENCES = 64  # sentences that are drawn at a time
MAX_BLOCKS = 200  # of a batch; subsampling may leave so few words that a batch has padding


def _source_field(name: str, default: str | None = None) -> Any:
    """Returns a field of the sources of language models. The words of a run are made from these fields."""
    like = next(each for each in dataclasses.fields(DocumentsConfig) if each.name == name)
    info = dataclasses.replace(like.metadata["info"], asset=WORDS_FILE if like.metadata["info"].asset else "")
    return dataclasses.field(default=like.default if default is None else default, metadata={"info": info})


@dataclasses.dataclass(frozen=True)
class SkipGramsConfig(DataSection):
    """The sentences, how they become pairs of words, and the questions that score the vectors.

    The sentences come from the built-in language, or are the lines of the documents of a language model. The
    defaults of `minimum_count`, `window` and `subsampling` are values of Mikolov et al. 2013 (sections 2.3 to
    4). word2vec.c has a subsampling of 1e-3, and the same other values. We chose the batch size.
    """

    URL_KINDS: ClassVar[tuple[str, ...]] = ("table",)

    kind: str = _source_field("kind", "builtin")
    name: str = _source_field("name")
    directory: str = _source_field("directory")
    feature: str = _source_field("feature")
    format: str = _source_field("format")
    train: str = _source_field("train")
    validation: str = field(
        "validation",
        "Held-out lines for the loss of validation, in the form of data.train. If empty, only the questions "
        "of data.analogies and data.similarities score the vectors. Not for the built-in language.",
    )
    test: str = _source_field("test")
    lower_case: bool = field(
        False,
        "Lower-case all words. word2vec.c does not. The built-in language is lower-case.",
        asset=WORDS_FILE,
    )
    analogies: str = field(
        "",
        "Files of analogies in the form of questions-words.txt, in data.directory or with a path: names "
        "separated by commas, or a pattern. The built-in language has its own questions.",
        resume=OnResume.FREE,
    )
    similarities: str = field(
        "",
        "Files of pairs of words with their similarity (TSV, CSV or separated by spaces), such as "
        "WordSim-353, named like data.analogies.",
        resume=OnResume.FREE,
    )
    most_frequent: int = field(
        30_000,
        "Number of the most frequent words that the analogies of files and their answers are limited to, as "
        "in the authors' program compute-accuracy. 0 means no limit.",
        minimum=0,
        maximum=10**9,
        unit="words",
        resume=OnResume.FREE,
    )
    validation_pairs: int = field(
        100_000,
        "Number of random pairs of held-out lines for the loss of validation.",
        minimum=1,
        maximum=10**9,
        unit="pairs",
    )
    cache_dir: str = _source_field("cache_dir")
    sentences: int = field(
        50_000,
        "Number of training sentences of the built-in language.",
        minimum=1,
        maximum=50_000,
        unit="sentences",
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

    @property
    def is_language(self) -> bool:
        """True if the sentences come from the built-in language."""
        return self.kind == "builtin" and not self.name

    @property
    def documents(self) -> DocumentsConfig:
        """The data section of a language model that reads the same documents."""
        names = ("kind", "name", "directory", "feature", "format", "train", "validation", "test", "cache_dir")
        return DocumentsConfig(documents="line", **{name: getattr(self, name) for name in names})

    @property
    def summary(self) -> str:
        """Description of the data for a line of the model card."""
        if self.is_language:
            return f"{self.sentences:,} sentences of the built-in language of tfm"
        return (
            self.documents.summary if self.validation else self.documents.summary.partition(", validated")[0]
        )

    def without_paths(self) -> "SkipGramsConfig":
        """Returns this section without the paths of this machine, for an export."""
        names = ("train", "validation", "test", "analogies", "similarities")
        files: dict[str, Any] = {name: remove_folders(getattr(self, name)) for name in names}
        return dataclasses.replace(self, directory="", cache_dir="", **files)

    def __post_init__(self):
        if self.is_language:
            check_fields(self, "data")
            return
        super().__post_init__()
        self.documents  # noqa: B018 - checks the fields of the documents


def count_words(sentences: Iterable[Sequence[str]], minimum_count: int) -> dict[str, int]:
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


class Sentences(NamedTuple):
    """Sentences as numbers of words, in arrays that may be memory-mapped.

    Attributes:
      words: int [N], the numbers of all words.
      ends: int [sentences], where each sentence ends in `words`.
      gap: number of places at the end of each sentence that are no words.
    """

    words: np.ndarray
    ends: np.ndarray
    gap: int = 0

    def __len__(self) -> int:
        return len(self.ends)

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the concatenated words of some sentences, and the number of words of each."""
        starts = find_starts(self.ends, rows)
        lengths = self.ends[rows] - starts - self.gap
        return self.words[concatenate_ranges(starts, lengths)], lengths


def number_sentences(sentences: Sequence[Sequence[str]], counts: Mapping[str, int]) -> Sentences:
    """Returns sentences of words as numbers. Words outside of the vocabulary are left out."""
    numbers = {word: number for number, word in enumerate(counts)}
    rows = [[numbers[word] for word in sentence if word in numbers] for sentence in sentences]
    words = np.array(list(itertools.chain.from_iterable(rows)), np.int32)
    return Sentences(words, np.cumsum([len(row) for row in rows]))


class SkipGramBatches:
    """An endless sequence of batches of pairs from random sentences, each a function of step, seed and host.

    Args:
      sentences: the sentences.
      counts: {word: count} of the vocabulary, see `count_words`.
      config: the data section.
      seed: seed of the run.
      host_index, host_count: host i has the pairs i, i + host_count, ... of each batch.
    """

    def __init__(
        self,
        sentences: Sentences,
        counts: Mapping[str, int],
        config: SkipGramsConfig,
        seed: int,
        *,
        host_index: int = 0,
        host_count: int = 1,
    ):
        self._sentences = sentences
        self._keep = keep_probabilities(np.array(list(counts.values())), config.subsampling)
        self._config, self._seed = config, seed
        self._host_index, self._host_count = host_index, host_count

    def batch(self, step: int) -> Batch:
        """Returns this host's share of the batch of `step`, counted from 0.

        If subsampling leaves too few words, the batch has padding rows.
        """
        rng = np.random.default_rng((self._seed, step))
        blocks: list[np.ndarray] = []
        while sum(map(len, blocks)) < self._config.batch_size and len(blocks) < MAX_BLOCKS:
            blocks.append(self._draw_pairs(rng))
        pairs = rng.permutation(np.concatenate(blocks))[: self._config.batch_size]
        return self._assemble(pairs[self._host_index :: self._host_count])

    def _draw_pairs(self, rng: np.random.Generator) -> np.ndarray:
        """Returns the pairs of some random sentences, after the subsampling of frequent words."""
        rows = rng.integers(len(self._sentences.ends), size=BLOCK_SENTENCES)
        words, lengths = self._sentences.take(rows)
        sentences = np.repeat(np.arange(len(rows)), lengths)
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
