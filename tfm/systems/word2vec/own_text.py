"""Word vectors of a user's own text: the loss of held-out lines, and questions from files.

The best checkpoint has the smallest loss of the held-out lines. Without held-out lines, it has the most right
analogies, or else the largest correlation with the similarities.
"""

import functools
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfm.data.batches.schedule import Batch
from tfm.data.data_errors import MissingFile
from tfm.data.sources.splits import find_name
from tfm.devices.mesh import fetch
from tfm.errors import UserError
from tfm.evaluation.score import Score
from tfm.systems.word2vec.corpus import open_lines, open_sentences
from tfm.systems.word2vec.question_files import (
    ANALOGIES,
    SIMILARITIES,
    Outcome,
    WordIndex,
    find_known_analogies,
    find_known_pairs,
    find_paths,
    read_analogies,
    read_pairs,
    score_analogies,
    score_similarities,
)
from tfm.systems.word2vec.skip_grams import SkipGramBatches, SkipGramsConfig
from tfm.systems.word2vec.task import (
    EVALUATION_SEED,
    LOSS,
    SHOWN_NEIGHBOURS,
    Config,
    WordsData,
    WordVectors,
)
from tfm.systems.word2vec.word_questions import find_neighbours
from tfm.training.loss_calls import mean_loss_and_metrics
from tfm.training.task import Best, Evaluation, Report, Samples, Variables

REPORTED_WORDS = 100  # whose neighbours are the outputs of a run without questions


class OwnTextVectors(WordVectors):
    """A task that trains word vectors on a user's own text. For the arguments, see `WordVectors`."""

    def __init__(self, config: Config, counts: dict[str, int], fingerprint: str):
        super().__init__(config, counts, fingerprint)
        data = config.data
        orders = {
            f"validation/{LOSS}": data.validation and "min",
            f"validation/{ANALOGIES}": data.analogies and "max",
            f"validation/{SIMILARITIES}": data.similarities and "max",
        }
        self.validation_scores = tuple(name for name, order in orders.items() if order)
        self.validation_loss = f"validation/{LOSS}" if data.validation else ""
        self.best = Best("")
        if self.validation_scores:
            best = self.validation_scores[0]
            self.best = Best(best, "min" if best == self.validation_loss else "max")
        self._measure_loss = functools.cache(self._make_loss_batches)

    @functools.cached_property
    def _questions(self) -> dict[str, Any]:
        """The content of the files of questions, see `read_questions`."""
        return read_questions(self.config.data)

    def check_questions(self) -> None:
        """Checks the files of questions.

        Raises:
          UserError: if a file is missing or damaged, or the vocabulary has the words of none of its
            questions.
        """
        if self._questions[ANALOGIES]:
            find_known_analogies(self._index, self._questions[ANALOGIES])
        for name, pairs in self._questions[SIMILARITIES].items():
            find_known_pairs(WordIndex(self.words), name, pairs)

    @functools.cached_property
    def _index(self) -> WordIndex:
        """Finds the words of analogies."""
        return WordIndex(self.words, self.config.data.most_frequent)

    def open_data(self) -> WordsData:
        """Opens the training sentences, and checks the held-out sentences and the questions.

        Raises:
          UserError: if data are missing or damaged, or there is nothing that can score the vectors.
        """
        if not self.validation_scores:
            raise UserError(
                "Nothing scores the vectors. Set data.validation to a file of held-out lines, data.analogies "
                "to a file such as questions-words.txt, or data.similarities to one such as wordsim353.tsv."
            )
        self.check_questions()
        if self.config.data.validation:
            self._check_held_out_lines()
        data = self.config.data
        fingerprints = {split: identify_split(data, split) for split in ("train", "validation")}
        return WordsData(self.config, open_sentences(data, "train", self.counts), self.counts, fingerprints)

    def _check_held_out_lines(self) -> None:
        """Raises a UserError if the loss of validation cannot be computed, and not only after training."""
        try:
            self._measure_loss("validation")
        except MissingFile as error:
            raise UserError(
                f"{error} Leave data.validation empty if only questions are to score the vectors."
            ) from None

    def evaluate(self, variables: Variables, data: Any) -> Evaluation:
        """Computes the loss of the held-out lines, and scores the questions of the files."""
        vectors = fetch(variables["params"]["centers"])
        scores = {score.name: score.value / 100 for score in self._answer(vectors).scores}
        values = {f"validation/{name}": scores[name] for name in (ANALOGIES, SIMILARITIES) if name in scores}
        if self.config.data.validation:
            values[f"validation/{LOSS}"] = self._compute_loss(variables, "validation")
        return Evaluation(values, self._show_neighbours(vectors) if self.config.validation_samples else None)

    def report(self, variables: Any, split: str) -> Iterator[Report]:
        """Yields the answers to the questions of the files, the scores, and the loss of a split.

        Without questions, the outputs are the neighbours of the most frequent words.

        Raises:
          UserError: if there are neither questions nor lines of this split.
        """
        began = time.monotonic()
        vectors = fetch(variables["params"]["centers"])
        outcome = self._answer(vectors)
        scores, outputs, examples = list(outcome.scores), outcome.outputs, outcome.examples
        if has_lines(self.config.data, split, self._questions):
            pairs = _count_pairs(self._measure_loss(split))
            signature = f"nats per pair, {pairs:,} random pairs of the split"
            scores.insert(0, Score(LOSS, self._compute_loss(variables, split), signature, digits=4))
        if not examples:
            examples = self._list_neighbours(vectors, range(min(REPORTED_WORDS, len(self.words))))
            outputs = [example["neighbours"] for example in examples]
        rate = len(examples) / (time.monotonic() - began)
        yield Report(outputs, scores, examples, {}, rate, identify_split(self.config.data, split))

    def _answer(self, vectors: np.ndarray) -> Outcome:
        """Returns the answers to all questions, and their scores."""
        outcome = Outcome([], [], [])
        if analogies := self._questions[ANALOGIES]:
            outcome = score_analogies(vectors, self._index, analogies)
        if files := self._questions[SIMILARITIES]:
            others = score_similarities(vectors, WordIndex(self.words), files)
            outcome = Outcome(
                [*outcome.scores, *others.scores],
                [*outcome.outputs, *others.outputs],
                [*outcome.examples, *others.examples],
            )
        return outcome

    def _make_loss_batches(self, split: str) -> Sequence[Batch]:
        """Returns batches of random pairs of a split, always the same.

        Raises:
          UserError: if the split is missing or damaged, or subsampling leaves no pair of it.
        """
        data = self.config.data
        sentences = open_sentences(data, split, self.counts)
        batches = SkipGramBatches(sentences, self.counts, data, EVALUATION_SEED)
        drawn = [batches.batch(step) for step in range(-(-data.validation_pairs // data.batch_size))]
        if not _count_pairs(drawn):
            raise UserError(
                f"The lines of the split '{find_name(data, split)}' have no pair of words after subsampling. "
                "Increase data.subsampling, or add lines."
            )
        return drawn

    def _compute_loss(self, variables: Variables, split: str) -> float:
        """Returns the loss per pair of a split, with constant noise."""
        return mean_loss_and_metrics(self, variables, self._measure_loss(split))[0]

    def _show_neighbours(self, vectors: np.ndarray) -> Samples:
        """Returns the neighbours of frequent words, without a map, because the classes are unknown."""
        rows = self._list_neighbours(vectors, self._choose_shown())
        return Samples(rows, {})

    def _choose_shown(self) -> Sequence[int]:
        """Returns the numbers of words of all ranks, because the most frequent words have little meaning."""
        count = min(self.config.validation_samples, len(self.words))
        return np.unique(np.geomspace(1, len(self.words), count + 1).astype(int)[1:] - 1).tolist()

    def _list_neighbours(self, vectors: np.ndarray, numbers: Sequence[int]) -> list[dict[str, str]]:
        """Returns texts with some words and their nearest neighbours."""
        neighbours = find_neighbours(vectors, list(numbers), min(SHOWN_NEIGHBOURS, len(self.words) - 1))
        return [
            {"word": self.words[number], "neighbours": ", ".join(self.words[other] for other in others)}
            for number, others in zip(numbers, neighbours, strict=True)
        ]


def read_questions(data: SkipGramsConfig) -> dict[str, Any]:
    """Returns the content of the files of questions: {"analogies": list, "similarities": {file: pairs}}."""
    analogies = [q for path in find_paths(data.directory, data.analogies) for q in read_analogies(path)]
    paths = find_paths(data.directory, data.similarities)
    return {
        ANALOGIES: analogies,
        SIMILARITIES: {os.path.splitext(os.path.basename(path))[0]: read_pairs(path) for path in paths},
    }


def has_lines(data: SkipGramsConfig, split: str, questions: Mapping[str, Any]) -> bool:
    """Returns whether a split has lines. Questions alone are enough for a split that does not exist.

    Args:
      data: the data section.
      split: "validation" or "test". Any other text is itself the name of a file.
      questions: see `read_questions`.

    Raises:
      UserError: if there are neither lines nor questions.
    """
    has_questions = any(questions.values())
    if not getattr(data, split, split) and has_questions:
        return False
    try:
        open_lines(data, split)
    except MissingFile as error:
        if has_questions:
            return False
        raise UserError(
            f"Nothing scores the vectors of the split '{split}'. Set data.analogies or data.similarities "
            f"to files of questions, or data.{split} to a file of lines. {error}"
        ) from None
    return True


def identify_split(data: SkipGramsConfig, split: str) -> str:
    """Returns the fingerprint of the lines of a split. All splits except training also have the questions.

    Raises:
      UserError: if a file is missing or damaged.
    """
    if split == "train":
        return open_lines(data, split).fingerprint
    questions = read_questions(data)
    lines = open_lines(data, split).fingerprint if has_lines(data, split, questions) else ""
    return hashlib.sha256(json.dumps([lines, questions]).encode()).hexdigest()


def _count_pairs(batches: Sequence[Batch]) -> int:
    """Returns the number of pairs in batches, without padding."""
    return sum(int(batch["weights"].sum()) for batch in batches)
