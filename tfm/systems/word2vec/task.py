"""Word vectors: trains word2vec on the built-in language, and tests it with analogies and nearest neighbours.

For the batch, see `tfm.systems.word2vec.skip_grams`. The words of a run are in words.json, with their counts.
For a user's own text, see `tfm.systems.word2vec.own_text`.
"""

import collections
import dataclasses
import functools
import json
import os
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tfm import models, tasks
from tfm.config import OnResume, check_fields, field
from tfm.data.batches.schedule import PrefetchedData
from tfm.data.inspection import Summary
from tfm.data.source import hash_text
from tfm.devices.mesh import fetch
from tfm.devices.rows import this_host
from tfm.errors import UserError
from tfm.evaluation.score import Score
from tfm.io.files import atomic_file
from tfm.systems.word2vec.corpus import count_corpus
from tfm.systems.word2vec.inspection import summarize
from tfm.systems.word2vec.model import Word2VecConfig
from tfm.systems.word2vec.question_files import ANALOGIES, SIMILARITIES
from tfm.systems.word2vec.skip_grams import (
    WORDS_FILE,
    Sentences,
    SkipGramBatches,
    SkipGramsConfig,
    count_words,
    number_sentences,
)
from tfm.systems.word2vec.word_map import draw_word_map, project
from tfm.systems.word2vec.word_questions import (
    Analogy,
    find_neighbours,
    make_analogies,
    normalize,
    read_sentences,
    read_word_classes,
    solve_analogies,
)
from tfm.training.assets import read_json_asset
from tfm.training.config import TrainingConfig
from tfm.training.loss_calls import apply_model
from tfm.training.task import (
    Batch,
    Best,
    Context,
    Evaluation,
    LossOutput,
    Report,
    Samples,
    Task,
    Variables,
)

EVALUATION_SEED = (1 << 31) - 1  # of the noise of evaluations
NOISE_POWER = 0.75  # the noise is proportional to this power of the counts (section 2.2)
LOSS, FORMS, NEIGHBOURS = "loss", "form of the answers", "class of the neighbours"
SHOWN_NEIGHBOURS = 5
SHOWN_CLASSES = ("CD", "JJ", "NN", "NNS", "VB", "VBD", "VBZ")  # of the map of words


@dataclasses.dataclass(frozen=True)
class Config:
    """The config of a run that learns word vectors.

    The default of `negatives` is the value of NEG-5 in Table 1 of Mikolov et al. 2013, and of word2vec.c. The
    defaults of `training` are the Transformer's.
    """

    task: str = tasks.task_field("word_vectors")
    model: Any = models.model_field(Word2VecConfig)
    data: SkipGramsConfig = field(SkipGramsConfig, "Sentences and their pairs of words.")
    training: TrainingConfig = field(TrainingConfig, "Training procedure.")
    negatives: int = field(
        5, "Number of noise words of each pair, k.", minimum=1, maximum=10_000, unit="words"
    )
    validation_samples: int = field(
        10,
        "Number of frequent words whose neighbours are shown, with a map of all words. 0 turns this off.",
        minimum=0,
        maximum=1000,
        resume=OnResume.FREE,
        unit="words",
    )
    SCORES: ClassVar[tuple[str, ...]] = (
        *(LOSS, ANALOGIES, f"{ANALOGIES}, *", SIMILARITIES, f"{SIMILARITIES}, *", FORMS, NEIGHBOURS),
    )
    output_suffix: ClassVar[str] = "analogies"

    def __post_init__(self):
        check_fields(self)

    def without_paths(self) -> "Config":
        """Returns this config without the paths of this machine, for an export."""
        return dataclasses.replace(self, data=self.data.without_paths())


class WordsData(PrefetchedData):
    """The training pairs of a run. Implements `tfm.training.task.Data`."""

    def __init__(
        self, config: Config, sentences: Sentences, counts: dict[str, int], fingerprints: dict[str, str]
    ):
        super().__init__(
            SkipGramBatches(sentences, counts, config.data, config.training.seed, **this_host()), fingerprints
        )
        self._description = f"{len(sentences.ends):,} sentences, {len(counts):,} words in the vocabulary"

    def count(self, batch: Batch) -> int:
        """Returns the number of pairs of a host batch, without padding."""
        return int(batch["weights"].sum())

    def describe(self, parameters: int) -> list[tuple[str, str]]:
        """Returns the (name, text) line about the sentences."""
        return [("texts", self._description)]


class WordVectors(Task):
    """A task that trains word vectors. For the attributes, see `tfm.training.task.Task`.

    Args:
      config: `Config`.
      counts: {word: count} of the vocabulary, the most frequent word first.
      fingerprint: SHA-256 of the file of the words.
    """

    best = Best("validation/analogies", "max")  # no loss, because all sentences train
    validation_scores: tuple[str, ...] = ("validation/analogies", "validation/class_of_the_neighbours")
    unit = "pairs"

    def __init__(self, config: Config, counts: dict[str, int], fingerprint: str):
        self.config, self.counts, self._fingerprint = config, counts, fingerprint
        self.words = list(counts)
        self.model = models.find(config.model.name).Model(config.model, vocabulary_size=len(counts))

    def init(self, rng: jax.Array) -> Variables:
        """Returns the variables before training."""
        return self.model.init(rng, jnp.zeros(1, int), jnp.zeros((1, 1), int), train=False)

    def constants(self) -> dict[str, np.ndarray]:
        """Returns the cumulative probabilities of the noise words, float32 [V]."""
        noise = np.array(list(self.counts.values()), float) ** NOISE_POWER
        return {"noise": (np.cumsum(noise) / noise.sum()).astype(np.float32)}

    def loss(self, variables: Variables, batch: Batch, context: Context) -> LossOutput:
        """Computes the negative-sampling loss per pair (equation 4). An evaluation has constant noise.

        Noise words that equal the context are left out.
        """
        key = context.row_rng if context.train else jax.random.key(EVALUATION_SEED)
        draws = jax.random.uniform(key, (len(batch["centers"]), self.config.negatives))
        noise = jnp.searchsorted(context.constants["noise"], draws, side="right")
        words = batch["contexts"][:, None]
        logits, state = apply_model(
            self.model, variables, batch["centers"], jnp.concatenate([words, noise], 1), context=context
        )
        # Noise that equals the context says nothing, and the authors' code leaves it out.
        of_noise = jnp.where(noise == words, 0, jax.nn.softplus(logits[:, 1:])).sum(-1)
        losses = jax.nn.softplus(-logits[:, 0]) + of_noise
        weights = batch["weights"]
        return LossOutput({"loss": ((weights * losses).sum(), weights.sum())}, state=state)

    def open_data(self) -> WordsData:
        """Opens the training sentences."""
        sentences = read_sentences("train")[: self.config.data.sentences]
        fingerprints = {split: self.identify_split(split) for split in ("train", "validation")}
        return WordsData(self.config, number_sentences(sentences, self.counts), self.counts, fingerprints)

    def identify_split(self, split: str) -> str:
        """Returns the fingerprint of the training sentences, or of the analogies of another split."""
        if split == "train":
            return hash_text(json.dumps(read_sentences(split)[: self.config.data.sentences]))
        return hash_text(json.dumps(self.questions(split)))

    def assets(self) -> dict[str, str]:
        """Returns {file name: SHA-256} of the words."""
        return {WORDS_FILE: self._fingerprint}

    def questions(self, split: str) -> list[Analogy]:
        """Returns the analogies of a split whose words are in the vocabulary.

        Raises:
          UserError: if there is no such split, or the vocabulary has the words of no analogy.
        """
        analogies = [analogy for analogy in make_analogies(split) if set(analogy[1:]) <= self.counts.keys()]
        if not analogies:
            data = self.config.data
            raise UserError(
                f"The {len(self.words):,} words of the vocabulary are too few for the analogies of the split "
                f"'{split}'. Increase data.sentences (now {data.sentences:,}) or decrease data.minimum_count "
                f"(now {data.minimum_count:,})."
            )
        return analogies

    def check_questions(self) -> None:
        """Raises a UserError if the vocabulary has the words of no question of the validation."""
        self.questions("validation")

    def evaluate(self, variables: Variables, data: Any) -> Evaluation:
        """Scores the analogies of the validation and the neighbours, and draws a map of the words.

        The metrics are shares, see `validation_scores`. Without `config.validation_samples`, there is no map.
        """
        vectors = fetch(variables["params"]["centers"])
        scores = self._score(vectors, "validation")[1]
        values = {
            f"validation/{score.name.replace(' ', '_')}": score.value / 100
            for score in scores
            if score.name in (ANALOGIES, NEIGHBOURS)
        }
        return Evaluation(values, self._make_samples(vectors) if self.config.validation_samples else None)

    def _make_samples(self, vectors: np.ndarray) -> Samples:
        """Returns the neighbours of the most frequent nouns, verbs and other words, and a map of words."""
        classes = read_word_classes()
        shown = [number for number, word in enumerate(self.words) if classes.get(word) in SHOWN_CLASSES]
        first = shown[: self.config.validation_samples]
        neighbours = find_neighbours(vectors, first, SHOWN_NEIGHBOURS)
        rows = [
            {"word": self.words[number], "neighbours": ", ".join(self.words[other] for other in others)}
            for number, others in zip(first, neighbours, strict=True)
        ]
        words = [self.words[number] for number in shown]
        points = project(normalize(vectors)[shown])
        draw = functools.partial(draw_word_map, points, words, [classes[word] for word in words])
        return Samples(rows, {"words": draw})

    def report(self, variables: Any, split: str) -> Iterator[Report]:
        """Yields one report, whose outputs are the answers to the analogies of a split.

        Raises:
          UserError: see `questions`.
        """
        began = time.monotonic()
        questions = self.questions(split)
        answers, scores = self._score(fetch(variables["params"]["centers"]), split)
        examples = [
            {"analogy": f"{q.first} : {q.second} = {q.third} : {q.fourth}", "answer": answer}
            for q, answer in zip(questions, answers, strict=True)
        ]
        rate = len(questions) / (time.monotonic() - began)
        yield Report(answers, scores, examples, {}, rate, self.identify_split(split))

    def _score(self, vectors: np.ndarray, split: str) -> tuple[list[str], list[Score]]:
        """Returns the answers to the analogies of a split, and the scores in per cent."""
        questions, classes = self.questions(split), read_word_classes()
        numbers = {word: number for number, word in enumerate(self.words)}
        triples = np.array([[numbers[word] for word in question[1:4]] for question in questions])
        answers = [self.words[number] for number in solve_analogies(vectors, triples)]
        right = np.array([answer == q.fourth for answer, q in zip(answers, questions, strict=True)])
        forms = [classes.get(a) == classes.get(q.fourth) for a, q in zip(answers, questions, strict=True)]
        scores = [
            Score(ANALOGIES, 100 * float(right.mean()), f"per cent of {len(right):,}"),
            Score(FORMS, 100 * float(np.mean(forms)), f"per cent of {len(right):,}, class of the right word"),
        ]
        for relation in dict.fromkeys(question.relation for question in questions):
            chosen = right[[question.relation == relation for question in questions]]
            signature = f"per cent of {len(chosen):,}"
            scores.append(Score(f"{ANALOGIES}, {relation}", 100 * float(chosen.mean()), signature))
        return answers, [*scores, self._score_neighbours(vectors, classes)]

    def _score_neighbours(self, vectors: np.ndarray, classes: dict[str, str]) -> Score:
        """Returns the share of words whose nearest neighbour has their class."""
        known = [number for number, word in enumerate(self.words) if word in classes]
        nearest = find_neighbours(vectors, known, 1)[:, 0]
        names = [classes[self.words[number]] for number in known]
        same = [classes.get(self.words[other]) == name for name, other in zip(names, nearest, strict=True)]
        chance = 100 * sum((count / len(names)) ** 2 for count in collections.Counter(names).values())
        signature = f"per cent of {len(names):,} words, by chance {chance:.1f}"
        return Score(NEIGHBOURS, 100 * float(np.mean(same)), signature)


def fingerprint(config: Config, split: str) -> str:
    """Returns the fingerprint of the content of a split."""
    from tfm.systems.word2vec import own_text  # imported here because it imports this module

    if not config.data.is_language:
        return own_text.identify_split(config.data, split)
    return WordVectors(config, count_training_words(config.data), "").identify_split(split)


def create(config: Config, workdir: str, *, new: bool = True) -> WordVectors:
    """Creates the task of a run. A new run writes the words of its training sentences.

    Raises:
      UserError: if the words are too few or have none of the questions, or their file is missing or damaged.
    """
    from tfm.systems.word2vec import own_text  # imported here because it imports this module

    is_language = config.data.is_language
    task_class = WordVectors if is_language else own_text.OwnTextVectors
    path = os.path.join(workdir, WORDS_FILE)
    if new and not os.path.exists(path):
        counts = count_training_words(config.data)
        task_class(config, counts, "").check_questions()
        with atomic_file(path, "w") as file:
            json.dump(list(counts.items()), file)
    return task_class(config, *read_json_asset(path, "the words of the run with their counts", _parse_words))


def count_training_words(data: SkipGramsConfig) -> dict[str, int]:
    """Returns {word: count} of the vocabulary of the training sentences, the most frequent word first."""
    if not data.is_language:
        return count_corpus(data)
    return count_words(read_sentences("train")[: data.sentences], data.minimum_count)


def inspect_split(config: Config, split: str) -> Summary:
    """Returns the statistics of the sentences of a split for `tfm data`."""
    return summarize(config.data, split, count_training_words(config.data))


def _parse_words(words: Any) -> dict[str, int]:
    """Returns {word: count}. Raises a ValueError or a TypeError for other content of the file of words."""
    counts = dict(words)
    if not all(isinstance(word, str) and type(count) is int for word, count in counts.items()):
        raise ValueError("expected texts and integers")
    return counts
