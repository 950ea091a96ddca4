"""Questions about stories: trains a memory network to answer with one word.

For the batch, see `tfm.systems.memory_network.stories`.
"""

import dataclasses
import functools
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tfm import models, tasks
from tfm.config import OnResume, check_fields, field
from tfm.data.batches.generated import EVALUATION, GeneratedData, evaluation_batches
from tfm.decoding.protocol import as_ensemble
from tfm.devices.rows import this_host
from tfm.evaluation.score import Score
from tfm.layers.observe import read_attention
from tfm.losses import smoothed_cross_entropy
from tfm.systems.memory_network.hops import Hops, draw_hops
from tfm.systems.memory_network.model import MemoryNetworkConfig
from tfm.systems.memory_network.stories import (
    KINDS,
    SENTENCE_WORDS,
    WORDS,
    Stories,
    StoriesConfig,
    Story,
    open_stories,
)
from tfm.training.config import TrainingConfig
from tfm.training.loss_calls import apply_model, mean_metrics
from tfm.training.map_batches import map_batches
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

ACCURACY, FACTS = "accuracy", "attended facts"


@dataclasses.dataclass(frozen=True)
class Config:
    """The config of a run that answers questions."""

    task: str = tasks.task_field("question_answering")
    model: Any = models.model_field(MemoryNetworkConfig)
    data: StoriesConfig = field(StoriesConfig, "Stories with questions, and their batches.")
    training: TrainingConfig = field(TrainingConfig, "Training procedure.")
    validation_samples: int = field(
        6,
        "Number of validation stories to draw with the attention of each hop. 0 turns this off.",
        minimum=0,
        maximum=1000,
        resume=OnResume.FREE,
        unit="stories",
    )
    SCORES: ClassVar[tuple[str, ...]] = (ACCURACY, f"{ACCURACY}, *", FACTS)
    output_suffix: ClassVar[str] = "answers"

    def __post_init__(self):
        check_fields(self)

    def without_paths(self) -> "Config":
        """Returns this config, because it has no paths."""
        return self


class QuestionAnswering(Task):
    """A task that trains a model to answer questions. For the attributes, see `tfm.training.task.Task`."""

    best = Best("validation/accuracy", "max")
    validation_scores = ("validation/nll", "validation/accuracy")
    validation_loss = "validation/nll"
    unit = "stories"
    averages_models = True

    def __init__(self, config: Config):
        self.config = config
        self.model = models.find(config.model.name).Model(config.model, vocabulary_size=len(WORDS) + 1)

    def init(self, rng: jax.Array) -> Variables:
        """Returns the variables before training."""
        story = jnp.ones((1, self.config.data.sentences, SENTENCE_WORDS), jnp.int32)
        return self.model.init(rng, story, story[:, 0], train=False)

    def loss(self, variables: Variables, batch: Batch, context: Context) -> LossOutput:
        """Computes the cross-entropy of the answers. The metrics are "nll" and "accuracy"."""
        inputs = batch["stories"], batch["questions"]
        logits, state = apply_model(self.model, variables, *inputs, context=context)
        nll = smoothed_cross_entropy(logits, batch["answers"], batch["weights"], smoothing=0.0)
        correct = ((_best_words(logits) + 1 == batch["answers"]) * batch["weights"]).sum()
        return LossOutput({"loss": nll}, {"nll": nll, "accuracy": (correct, nll[1])}, state)

    def open_data(self) -> GeneratedData:
        """Opens training and validation stories."""
        return open_stories(self.config, this_host())

    def evaluate(self, variables: Variables, data: Any) -> Evaluation:
        """Computes loss and accuracy of the validation split, and draws the attention of some stories."""
        generator, size = Stories(self.config.data, "validation"), self.config.data.batch_size
        batches = evaluation_batches(generator, self.config.data.evaluated, size)
        metrics = mean_metrics(self, variables, batches)
        scores = {f"validation/{name}": value for name, value in metrics.items()}
        stories, answers, weights = self.answer(variables, "validation")
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
        scores = [Score(ACCURACY, 100 * float(right.mean()), f"per cent of {len(right):,} questions")]
        for kind in KINDS:
            of_kind = right[[story.kind == kind for story in stories]]
            if of_kind.size:
                signature = f"per cent of {len(of_kind):,} questions"
                scores.append(Score(f"{ACCURACY}, {kind}", 100 * float(of_kind.mean()), signature))
        attended = [set(hops.argmax(-1).tolist()) for hops in weights]
        hits = [fact in hops for story, hops in zip(stories, attended, strict=True) for fact in story.facts]
        signature = f"per cent of {len(hits):,} facts have the largest weight of a hop"
        scores.append(Score(FACTS, 100 * float(np.mean(hits)), signature))
        examples = [_describe(*each) for each in zip(stories, answers, strict=True)]
        identity = Stories(self.config.data, split).fingerprint
        yield Report(answers, scores, examples, {}, rate, identity)

    def answer(self, variables: Any, split: str) -> tuple[list[Story], list[str], np.ndarray]:
        """Returns the stories of a split, the answers, and the weights of each hop [N, hops, S].

        `variables` is a tuple for an ensemble, whose probabilities and weights are averaged.
        """
        generator, data = Stories(self.config.data, split), self.config.data
        stories = [generator.make(EVALUATION, index) for index in range(data.evaluated)]
        batches = evaluation_batches(generator, data.evaluated, data.batch_size)
        results = [result for _, result in map_batches(self._answer, variables, batches)]
        answers, weights = (np.concatenate(parts) for parts in zip(*results, strict=True))
        return stories, [WORDS[number] for number in answers.tolist()], weights

    @functools.partial(jax.jit, static_argnums=0)
    def _answer(self, variables: Any, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Returns the answers int [B] as indices of `WORDS`, and the weights [B, hops, S]."""
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
        probabilities = jax.nn.softmax(logits).mean(0)
        return _best_words(probabilities), weights.mean(0)[:, :, 0, 0].swapaxes(0, 1)


def _best_words(scores: jax.Array) -> jax.Array:
    """Returns the indices of `WORDS` with the largest scores. Class 0 is padding, which is no answer."""
    return scores[:, 1:].argmax(-1)


def _make_title(story: Story, answer: str) -> str:
    """Returns the question of a story with the answer of the model, and the right answer if it differs."""
    title = f"{story.question}? {answer}"
    return title if answer == story.answer else f"{title} (right: {story.answer})"


def _describe(story: Story, answer: str) -> dict[str, str]:
    """Returns the texts of a story, its question and the two answers."""
    text = ". ".join(story.sentences)
    return {"story": text, "question": story.question, "right": story.answer, "answer": answer}


def create(config: Config, workdir: str, *, new: bool = True) -> QuestionAnswering:
    """Creates the task of a run without assets."""
    del workdir, new
    return QuestionAnswering(config)
