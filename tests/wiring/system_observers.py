"""Observers of the config sections of word2vec and of memory networks."""

import tempfile
from typing import Any

import numpy as np

from tests.wiring.image_observers import observe_system
from tests.wiring.observers import Observation
from tfm.systems.memory_network import task as question_answering
from tfm.systems.memory_network.model import MemoryNetworkConfig
from tfm.systems.memory_network.stories import StoriesConfig
from tfm.systems.word2vec import task as word_vectors
from tfm.systems.word2vec.corpus import open_sentences
from tfm.systems.word2vec.model import Word2VecConfig
from tfm.systems.word2vec.skip_grams import SkipGramsConfig

WORD2VEC = Word2VecConfig(features=6)
SKIP_GRAMS = SkipGramsConfig(sentences=200, minimum_count=2, window=2, subsampling=0.01, batch_size=12)
OWN_TEXT = SkipGramsConfig(
    kind="text",
    directory="corpus",
    train="train.en",
    validation="validation.en",
    test="test.en",
    analogies="../questions.txt",
    cache_dir="word_cache",
    most_frequent=10,
    minimum_count=1,
    window=2,
    subsampling=0.01,
    batch_size=12,
    validation_pairs=12,
)
OWN_TABLE = SkipGramsConfig(
    kind="table",
    directory="corpus",
    train="train.tsv",
    validation="validation.tsv",
    feature="text",
    similarities="../pairs.txt",
    minimum_count=1,
    batch_size=12,
    validation_pairs=12,
)
MEMORY_NETWORK = MemoryNetworkConfig(features=6, hops=2, memories=4)
STORIES = StoriesConfig(sentences=6, batch_size=4, evaluated=3)
BABI = StoriesConfig(kind="babi", directory="babi", tasks="1,8", last_sentences=2, batch_size=4)


def observe_word2vec(section: Any) -> Observation:
    """Observes the vectors of a model or of a data section, and the cache and the scores of own text."""
    if isinstance(section, Word2VecConfig):
        return observe_system(word_vectors.Config(model=section, data=SKIP_GRAMS, validation_samples=1))
    config = word_vectors.Config(model=WORD2VEC, data=section, validation_samples=1)
    observation = observe_system(config)
    if section.is_language:
        return observation
    sentences = open_sentences(section, "train", word_vectors.count_training_words(section))
    with tempfile.TemporaryDirectory() as workdir:
        task = word_vectors.create(config, workdir)
    vectors = np.random.default_rng(0).normal(size=(len(task.words), WORD2VEC.features)).astype(np.float32)
    report = next(iter(task.report({"params": {"centers": vectors, "contexts": vectors}}, "test")))
    return observation | {
        "cache": str(sentences.words.filename),
        "scores": [(score.name, score.signature) for score in report.scores],
    }


def observe_memory_network(section: Any) -> Observation:
    """Observes the answers of a model or to the questions of a data section."""
    if isinstance(section, MemoryNetworkConfig):
        config = question_answering.Config(model=section, data=STORIES, validation_samples=1)
    else:
        config = question_answering.Config(model=MEMORY_NETWORK, data=section, validation_samples=1)
    return observe_system(config)
