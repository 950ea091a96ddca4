"""Observers of the config sections of word2vec."""

import dataclasses
import itertools
import pathlib
import tempfile

import numpy as np

from tests.support import tiny
from tests.wiring.case import Case, Observation
from tests.wiring.folder import other_files
from tests.wiring.observers import observe_task
from tfm.systems.word2vec import task as word_vectors
from tfm.systems.word2vec.corpus import open_sentences
from tfm.systems.word2vec.model import Word2VecConfig
from tfm.systems.word2vec.skip_grams import SkipGramsConfig

MODEL = Word2VecConfig(features=6)
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
CONFIG = word_vectors.Config(model=MODEL, data=SKIP_GRAMS, validation_samples=1)


def observe_model(model: Word2VecConfig) -> Observation:
    """Observes the task with this model."""
    return observe_task(dataclasses.replace(CONFIG, model=model))


def observe_skip_grams(data: SkipGramsConfig) -> Observation:
    """Observes the task with this data section."""
    return observe_task(dataclasses.replace(CONFIG, data=data))


def observe_own_text(data: SkipGramsConfig) -> Observation:
    """Observes the task, its cache, and the scores of random vectors, with the user's own text."""
    observation = observe_skip_grams(data)
    sentences = open_sentences(data, "train", word_vectors.count_training_words(data))
    with tempfile.TemporaryDirectory() as workdir:
        task = word_vectors.create(dataclasses.replace(CONFIG, data=data), workdir)
    vectors = np.random.default_rng(0).normal(size=(len(task.words), MODEL.features)).astype(np.float32)
    report = next(iter(task.report({"params": {"centers": vectors, "contexts": vectors}}, "test")))
    return observation | {
        "cache": str(sentences.words.filename),
        "scores": [(score.name, score.signature) for score in report.scores],
    }


def write_data() -> None:
    """Writes two files of analogies, and two of pairs of words with similarities."""
    for prefix, start in (("", 0), ("other_", 1)):
        words = tiny.WORDS[start : start + 6]
        analogies = [" ".join(words[first : first + 4]) for first in range(3)]
        pairs = [f"{left} {right} {rank}" for rank, (left, right) in enumerate(itertools.pairwise(words))]
        pathlib.Path(f"{prefix}questions.txt").write_text("\n".join(analogies))
        pathlib.Path(f"{prefix}pairs.txt").write_text("\n".join(pairs))


CASES = [
    Case(MODEL, observe_model),
    Case(SKIP_GRAMS, observe_skip_grams),
    Case(OWN_TEXT, observe_own_text),
    Case(OWN_TABLE, observe_own_text),
    Case(CONFIG, observe_task),
]
VALUES = {
    SkipGramsConfig: {
        "kind": "huggingface",
        "name": "pydoc_topics",
        "directory": "elsewhere",
        "feature": "en",
        "lower_case": True,
        "analogies": "../other_questions.txt",
        "similarities": "../other_pairs.txt",
        "cache_dir": "other_cache",
        **other_files(".en"),
    },
}
