"""Questions about stories: trains a memory network to answer with one word.

For the batch, see `tfm.systems.memory_network.stories`. A run on bAbI's files has its words in
babi_words.json.
"""

import collections
import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tfm import models, tasks
from tfm.config import OnResume, check_fields, field
from tfm.data.batches.generated import GeneratedData, evaluation_batches
from tfm.data.data_errors import MissingFile
from tfm.data.inspection import Summary, hash_text
from tfm.decoding.protocol import as_ensemble
from tfm.devices.mesh import fetch
from tfm.devices.rows import this_host
from tfm.evaluation.score import Score
from tfm.interpret.observation import Observation
from tfm.io.files import atomic_file
from tfm.layers.observe import read_attention
from tfm.losses import smoothed_cross_entropy
from tfm.systems.memory_network.babi import (
    VOCABULARY_FILE,
    BabiStories,
    Vocabulary,
    fingerprint_stories,
    learn_vocabulary,
    parse_vocabulary,
    read_split,
)
from tfm.systems.memory_network.hops import Hops, draw_hops
from tfm.systems.memory_network.model import MemoryNetworkConfig
from tfm.systems.memory_network.observe import (
    EXAMPLE,
    check_question,
    describe_answer,
    list_unknown_words,
    make_batch,
    parse_story,
)
from tfm.systems.memory_network.stories import BABI, PLACES, WORDS, Stories, StoriesConfig, Story
from tfm.training.assets import read_json_asset
from tfm.training.config import TrainingConfig
from tfm.training.loss_calls import add_sums, apply_model, means
from tfm.training.map_batches import map_batches
from tfm.training.task import (
    Batch,
    Best,
    Context,
    Evaluation,
    LossOutput,
    Report,
    Samples,
    SumAndCount,
    Task,
    Variables,
)

ACCURACY, FAILED, FACTS = "accuracy", "failed tasks", "attended facts"
DEFAULT_EXAMPLES = 2  # questions of the validation split to observe
MAX_ERROR = 5.0  # per cent; a task with a larger error has failed (Sukhbaatar et al. 2015, section 4.2)
GENERATED = Vocabulary(WORDS, PLACES)


@dataclasses.dataclass(frozen=True)
class Config:
    """The config of a run that answers questions."""

    task: str = tasks.task_field("question_answering")
    model: Any = models.model_field(MemoryNetworkConfig)
    data: StoriesConfig = field(StoriesConfig, "Stories with questions, and their batches.")
    training: TrainingConfig = field(TrainingConfig, "Training procedure.")
    linear_steps: int = field(
        0,
        "Number of first training steps in which the hops have no softmax (linear start).",
        minimum=0,
        maximum=10**9,
        unit="steps",
    )
    validation_samples: int = field(
        6,
        "Number of validation stories to draw with the attention of each hop. 0 turns this off.",
        minimum=0,
        maximum=1000,
        resume=OnResume.FREE,
        unit="stories",
    )
    SCORES: ClassVar[tuple[str, ...]] = (ACCURACY, f"{ACCURACY}, *", FAILED, FACTS)
    output_suffix: ClassVar[str] = "answers"

    def __post_init__(self):
        check_fields(self)

    def without_paths(self) -> "Config":
        """Returns this config without the folder of the data, for an export."""
        return dataclasses.replace(self, data=dataclasses.replace(self.data, directory=""))


class QuestionAnswering(Task):
    """A task that trains a model to answer questions. For the attributes, see `tfm.training.task.Task`.

    Args:
      config: `Config`.
      vocabulary: words and answers of the model.
      fingerprint: SHA-256 of the file of the vocabulary. Empty for generated stories.
    """

    best = Best("validation/accuracy", "max")
    validation_scores = ("validation/nll", "validation/accuracy")
    validation_loss = "validation/nll"
    unit = "stories"
    averages_models = True
    example_help = f"Your own story and a question, such as: {EXAMPLE}"
    example_has_lines = True

    def __init__(self, config: Config, vocabulary: Vocabulary = GENERATED, fingerprint: str = ""):
        self.config, self.vocabulary, self._fingerprint = config, vocabulary, fingerprint
        size = len(vocabulary.words) + 1
        self.model = models.find(config.model.name).Model(config.model, vocabulary_size=size)
        self._open_split = functools.cache(self._read_split)

    def init(self, rng: jax.Array) -> Variables:
        """Returns the variables before training."""
        story = jnp.ones((1, 1, 1), jnp.int32)
        return self.model.init(rng, story, story[:, 0], train=False)

    def loss(self, variables: Variables, batch: Batch, context: Context) -> LossOutput:
        """Computes the cross-entropy of the answers. The metrics are "nll" and "accuracy"."""
        inputs = batch["stories"], batch["questions"]
        keywords = {}
        if context.train and self.config.linear_steps:
            keywords["linear"] = context.step < self.config.linear_steps
        logits, state = apply_model(self.model, variables, *inputs, context=context, **keywords)
        metrics = _compare(logits, batch)
        return LossOutput({"loss": metrics["nll"]}, metrics, state)

    def open_data(self) -> GeneratedData:
        """Opens training and validation stories, and checks the test stories if their files exist."""
        train, validation, data = self._open_split("train"), self._open_split("validation"), self.config.data
        with contextlib.suppress(MissingFile):
            self._open_split("test")
        stories = f"new stories of up to {data.sentences:,} sentences"
        if data.kind == BABI:
            stories = f"of {len(train.stories):,} questions, {len(self.vocabulary.words):,} words"
        return GeneratedData(
            train,
            validation,
            batch_size=data.batch_size,
            seed=self.config.training.seed,
            hosts=this_host(),
            description=f"{data.batch_size:,} {stories} in each batch",
        )

    def assets(self) -> dict[str, str]:
        """Returns {file name: SHA-256} of the vocabulary of bAbI's files."""
        return {VOCABULARY_FILE: self._fingerprint} if self._fingerprint else {}

    def _read_split(self, split: str) -> Stories | BabiStories:
        """Returns the stories of a split."""
        if self.config.data.kind == BABI:
            return BabiStories(self.config.data, split, self.vocabulary)
        return Stories(self.config.data, split)

    def evaluate(self, variables: Variables, data: Any) -> Evaluation:
        """Computes loss and accuracy of the validation split, and draws the attention of some stories.

        The model reads each story once.
        """
        sums: dict[str, tuple[float, float]] = {}

        def answer(variables: Variables, batch: Batch) -> tuple[jax.Array, jax.Array]:
            results, metrics = self._answer_and_compare(variables, batch)
            add_sums(sums, metrics)
            return results

        stories, answers, weights = self._answer_split(answer, variables, "validation")
        scores = {f"validation/{name}": value for name, value in means(sums).items()}
        count = min(self.config.validation_samples, len(stories))
        if not count:
            return Evaluation(scores)
        rows = [_describe(*each) for each in zip(stories[:count], answers[:count], strict=True)]
        drawn = [
            Hops(_make_title(story, answer), story.sentences, hops[:, : len(story.sentences)])
            for story, answer, hops in zip(stories[:count], answers[:count], weights[:count], strict=True)
        ]
        return Evaluation(scores, Samples(rows, {"hops": functools.partial(draw_hops, drawn)}))

    def report(self, variables: Any, split: str) -> Iterator[Report]:
        """Yields the answers of a split, their accuracy, and how often the hops attend to the facts."""
        began = time.monotonic()
        stories, answers, weights = self.answer(variables, split)
        rate = len(stories) / (time.monotonic() - began)
        right = np.array([answer == story.answer for answer, story in zip(answers, stories, strict=True)])
        scores = self.score_answers(stories, right)
        attended = [set(hops.argmax(-1).tolist()) for hops in weights]
        hits = [fact in hops for story, hops in zip(stories, attended, strict=True) for fact in story.facts]
        if hits:
            signature = f"per cent of {len(hits):,} facts have the largest weight of a hop"
            scores.append(Score(FACTS, 100 * float(np.mean(hits)), signature))
        examples = [_describe(*each) for each in zip(stories, answers, strict=True)]
        yield Report(answers, scores, examples, {}, rate, self._open_split(split).fingerprint)

    def score_answers(self, stories: list[Story], right: np.ndarray) -> list[Score]:
        """Returns the accuracy in total and of each kind of question, and for bAbI the failed tasks.

        The total of several tasks of bAbI is the mean over the tasks, as in the paper.
        """
        rights: dict[str, list[bool]] = collections.defaultdict(list)
        for story, is_right in zip(stories, right.tolist(), strict=True):
            rights[story.kind].append(is_right)
        by_kind = {kind: 100 * float(np.mean(values)) for kind, values in sorted(rights.items())}
        is_babi = self.config.data.kind == BABI
        if not is_babi:
            total = Score(ACCURACY, 100 * float(right.mean()), f"per cent of {len(right):,} questions")
        else:
            unknown = sum(story.answer not in self.vocabulary.answers for story in stories)
            signature = f"per cent, mean of {_count(len(by_kind), 'task')}, {len(right):,} questions"
            if unknown:
                signature += f", {unknown:,} wrong because their answers never occur in training"
            total = Score(ACCURACY, float(np.mean(list(by_kind.values()))), signature)
        scores = [total]
        for kind, values in rights.items():
            signature = f"per cent of {len(values):,} questions"
            scores.append(Score(f"{ACCURACY}, {kind}", by_kind[kind], signature))
        if is_babi:
            failed = float(sum(100 - accuracy > MAX_ERROR for accuracy in by_kind.values()))
            signature = f"of {_count(len(by_kind), 'task')} have an error above {MAX_ERROR:g} per cent"
            scores.append(Score(FAILED, failed, signature, digits=0))
        return scores

    def answer(self, variables: Any, split: str) -> tuple[list[Story], list[str], np.ndarray]:
        """Returns the stories of a split, the answers, and the weights of each hop [N, hops, S].

        `variables` is a tuple for an ensemble, whose probabilities and weights are averaged.
        """
        return self._answer_split(self._answer, variables, split)

    def default_examples(self) -> list[str]:
        """See `tfm.interpret.observation.Observes`."""
        stories = self._open_split("validation").stories[:DEFAULT_EXAMPLES]
        return [". ".join([*story.sentences, f"{story.question}?"]) for story in stories]

    def observe(self, variables: Any, example: str, max_tokens: int) -> Observation:
        """Records to which sentences of a story each hop attends, and the answer.

        Args:
          variables: variables of the model.
          example: the sentences of a story, and a question at their end.
          max_tokens: ignored, because the number of sentences is limited by `model.memories`.

        Raises:
          UserError: if the example has no story or no question, or the vocabulary has no word of the
            question.
        """
        del max_tokens
        words = self.vocabulary.words
        ids = {word: number for number, word in enumerate(words, 1)}
        story = parse_story(example, self.config.model.memories)
        check_question(story, words)
        batch = make_batch(story, ids, self.config.data.sentences)
        probabilities, weights = fetch(self._observe(variables, batch))
        return describe_answer(story, words, self.vocabulary.answers, probabilities, weights)

    def find_unknown(self, example: str) -> list[str]:
        """Returns the words of an example that the vocabulary lacks, which the model does not read."""
        return list_unknown_words(parse_story(example, self.config.model.memories), self.vocabulary.words)

    @functools.partial(jax.jit, static_argnums=0)
    def _observe(self, variables: Any, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Returns the probabilities [V] and the weights [hops, S] of the first row of a batch."""
        logits, weights = self._read(variables, batch)
        return jax.nn.softmax(logits).mean(0)[0], weights.mean(0)[0]

    def _answer_split(
        self, answer: Callable[[Any, Batch], tuple[jax.Array, jax.Array]], variables: Any, split: str
    ) -> tuple[list[Story], list[str], np.ndarray]:
        """Returns the result of the method `answer`, for a function with the results of `_answer`."""
        generator = self._open_split(split)
        stories = generator.stories
        batches = evaluation_batches(generator, len(stories), self.config.data.batch_size)
        results = [result for _, result in map_batches(answer, variables, batches)]
        answers, weights = (np.concatenate(parts) for parts in zip(*results, strict=True))
        return stories, [self.vocabulary.words[number] for number in answers.tolist()], weights

    @functools.partial(jax.jit, static_argnums=0)
    def _answer(self, variables: Any, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Returns the answers int [B] as indices of the words, and the weights [B, hops, S]."""
        logits, weights = self._read(variables, batch)
        return _best_words(jax.nn.softmax(logits).mean(0)), weights.mean(0)

    @functools.partial(jax.jit, static_argnums=0)
    def _answer_and_compare(
        self, variables: Variables, batch: Batch
    ) -> tuple[tuple[jax.Array, jax.Array], dict[str, SumAndCount]]:
        """Returns the result of `_answer` for a single model, and the metrics of its loss."""
        (logits,), (weights,) = self._read(variables, batch)
        return (_best_words(logits), weights), _compare(logits, batch)

    def _read(self, variables: Any, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Returns the logits [members, B, V] and the weights [members, B, hops, S] of each model."""
        members = as_ensemble(variables)
        inputs = batch["stories"], batch["questions"]
        results = [
            read_attention(
                self.model.attention_points["memory"],
                functools.partial(self.model.apply, member, *inputs, train=False),
            )
            for member in members
        ]
        logits, weights = (jnp.stack(parts) for parts in zip(*results, strict=True))
        return logits, weights[:, :, :, 0, 0].swapaxes(1, 2)


def _compare(logits: jax.Array, batch: Batch) -> dict[str, SumAndCount]:
    """Returns the cross-entropy and the number of the right answers of a batch, for logits [B, V]."""
    nll = smoothed_cross_entropy(logits, batch["answers"], batch["weights"], smoothing=0.0)
    correct = ((_best_words(logits) + 1 == batch["answers"]) * batch["weights"]).sum()
    return {"nll": nll, "accuracy": (correct, nll[1])}


def _best_words(scores: jax.Array) -> jax.Array:
    """Returns the indices of the words with the largest scores. Class 0 is padding and no answer."""
    return scores[:, 1:].argmax(-1)


def _make_title(story: Story, answer: str) -> str:
    """Returns the question of a story, the predicted answer, and the right answer if it differs."""
    title = f"{story.question}?\npredicted: {answer}"
    return title if answer == story.answer else f"{title} (right: {story.answer})"


def _describe(story: Story, answer: str) -> dict[str, str]:
    """Returns the texts of a story, its question and the two answers."""
    text = ". ".join(story.sentences)
    return {"story": text, "question": story.question, "right": story.answer, "answer": answer}


def _count(number: int, noun: str) -> str:
    """Returns a number with its noun, such as "1 task" or "20 tasks"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def fingerprint(config: Config, split: str) -> str:
    """Returns the fingerprint of the content of a split."""
    if config.data.kind == BABI:
        return fingerprint_stories(read_split(config.data, split))
    return Stories(config.data, split).fingerprint


def create(config: Config, workdir: str, *, new: bool = True) -> QuestionAnswering:
    """Creates the task of a run. A new run on bAbI's files writes the words of its training files.

    Raises:
      UserError: if a training file is missing or damaged, or the file of the words is.
    """
    if config.data.kind != BABI:
        return QuestionAnswering(config)
    path = os.path.join(workdir, VOCABULARY_FILE)
    if new and not os.path.exists(path):
        vocabulary = learn_vocabulary(config.data)
        with atomic_file(path, "w") as file:
            file.write(vocabulary.dump())
    return QuestionAnswering(
        config, *read_json_asset(path, "the words and answers of the run", parse_vocabulary)
    )


def inspect_split(config: Config, split: str) -> Summary:
    """Returns the statistics of a split for `tfm data`."""
    data = config.data
    stories: Stories | BabiStories = Stories(data, split)
    unknown = None
    if data.kind == BABI:
        stories = BabiStories(data, split, learn_vocabulary(data))
        unknown = stories.unknown_answers
    return summarize(split, stories.stories, unknown)


def summarize(split: str, stories: list[Story], unknown_answers: int | None) -> Summary:
    """Returns the statistics of questions.

    Args:
      split: name of the split.
      stories: the questions with their stories, at least one.
      unknown_answers: number of answers that never occur in training. None if the answers are generated.
    """
    kinds = collections.Counter(story.kind for story in stories)
    answers = collections.Counter(story.answer for story in stories)
    sentences = [len(story.sentences) for story in stories]
    words = {
        word for story in stories for text in (*story.sentences, story.question) for word in text.split()
    }
    most, count = answers.most_common(1)[0]
    lines = [
        ("tasks", ", ".join(f"{kind} ({count:,})" for kind, count in kinds.items())),
        (
            "sentences",
            f"{min(sentences):,} to {max(sentences):,} before a question, mean {np.mean(sentences):.1f}",
        ),
        ("words", f"{len(words):,} different"),
        ("answers", f"{len(answers):,} different, most often '{most}' ({100 * count / len(stories):.1f} %)"),
        ("facts", f"{sum(len(story.facts) for story in stories):,} supporting sentences"),
    ]
    hints = []
    if unknown_answers:
        hints.append(f"no model can give {_count(unknown_answers, 'answer')} that never occur in training")
    values = {
        "questions": len(stories),
        "tasks": dict(kinds),
        "longest_story": max(sentences),
        "words": len(words),
        "answers": dict(answers),
        "unknown_answers": unknown_answers,
    }
    texts = (" ".join([*story.sentences, story.question, story.answer]) for story in stories)
    hashes = np.array([hash_text(text) for text in texts], np.uint64)
    title = f"{len(stories):,} questions of {_count(len(kinds), 'task')}"
    return Summary(split, title, lines, values, hints, hashes)
