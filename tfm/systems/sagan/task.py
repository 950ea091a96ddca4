"""Adversarial generation of labelled images with the hinge loss, judged by a trained classifier.

Each step first trains the discriminator and then the generator (two updates). A batch has the images, labels
and weights of `tfm.data.images.batches`. The labels of the generated images are the labels of the batch.
"""

import dataclasses
import functools
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tfm import models, tasks
from tfm.config import OnResume, check_fields, field
from tfm.data.config import ImagesConfig
from tfm.data.images import Images, eval_batches
from tfm.devices.mesh import fetch
from tfm.errors import UserError, suggest
from tfm.evaluation.score import Score
from tfm.interpret.observation import AttentionMap, Observation, Prediction, image_track
from tfm.layers.batch_norm import Rows
from tfm.layers.observe import read_attention
from tfm.systems.sagan.model import SelfAttentionGANConfig
from tfm.systems.sagan.scores import ACCURACY, DISTANCE, compute_scores
from tfm.tasks import image_classification
from tfm.tasks.image_classification import ClassificationData, open_split, prepare_labels
from tfm.training.assets import LABELS_FILE
from tfm.training.config import TrainingConfig
from tfm.training.frozen import SUFFIX, frozen_field
from tfm.training.image_judge import ImageJudge
from tfm.training.loss_calls import apply_model
from tfm.training.map_batches import map_rows
from tfm.training.task import (
    Batch,
    Best,
    Context,
    Evaluation,
    LossOutput,
    Report,
    Samples,
    Task,
    Update,
    Variables,
)
from tfm.visualize.pictures import draw_images

JUDGE = "judge"

inspect_split = image_classification.inspect_split
fingerprint = image_classification.fingerprint


@dataclasses.dataclass(frozen=True)
class Config:
    """The config of a run that generates images."""

    task: str = tasks.task_field("image_generation")
    model: Any = models.model_field(
        SelfAttentionGANConfig,
        "Generator and discriminator. The config has image_size, channels and classes.",
    )
    data: ImagesConfig = field(ImagesConfig, "Images and their batches.")
    training: TrainingConfig = field(TrainingConfig, "Training procedure.")
    judge: str = frozen_field(
        JUDGE,
        "Run or export of a classifier of such images, which scores them. configs/vit.py trains one.",
    )
    validation_samples: int = field(
        20,
        "Number of generated images to show at each evaluation. 0 shows no images.",
        minimum=0,
        maximum=1000,
        unit="images",
        resume=OnResume.FREE,
    )
    SCORES: ClassVar[tuple[str, ...]] = (ACCURACY, DISTANCE)
    output_suffix: ClassVar[str] = "labels"

    def __post_init__(self):
        check_fields(self)

    def without_paths(self) -> "Config":
        """Returns this config without the paths of the machine that trained it, for an export."""
        return dataclasses.replace(self, data=self.data.without_paths(), judge="")


def observe_image(
    name: str, image: np.ndarray, weights: np.ndarray, choices: list[tuple[str, float]]
) -> Observation:
    """Describes a generated image.

    Args:
      name: the requested class.
      image: [height, width, C], from -1 to 1.
      weights: attention weights of the pixels [layers, H, L, M].
      choices: classes and their probabilities according to the classifier, best first.
    """
    tracks = {
        track: image_track(image, weights.shape[axis]) for track, axis in (("pixels", -2), ("areas", -1))
    }
    attention = {"generator": AttentionMap("pixels", "areas", weights)}
    prediction = Prediction(choices[0][1], choices)
    return Observation(
        f"generated image of class {name}", choices[0][0], tracks, attention, [prediction], made="pixels"
    )


SAMPLE_SEED = 1  # of the images that each evaluation shows


class ImageGeneration(Task):
    """A task that trains a generator against a discriminator.

    For the attributes, see `tfm.tasks.image_classification.Classification`.
    """

    best = Best("validation/frechet", "min")  # the losses of two players measure no progress
    validation_scores = ("validation/accuracy", "validation/frechet")
    unit = "images"
    example_help = "The class of the picture to draw"

    def __init__(
        self,
        config: Config,
        label_names: list[str],
        fingerprint: str,
        sources: Mapping[str, Images] = MappingProxyType({}),
        judge: ImageJudge | None = None,
    ):
        self.config = config
        self.label_names = label_names
        self._fingerprint = fingerprint
        self._sources = sources
        self._judge = judge
        self.model = models.find(config.model.name).Model(config.model)

    def init(self, rng: jax.Array) -> Variables:
        """Returns the variables of both players before training."""
        model = self.config.model
        image = jnp.zeros((1, model.image_size, model.image_size, model.channels))
        return self.model.init(rng, jnp.zeros((1, model.noise)), jnp.zeros(1, int), image, train=False)

    def updates(self) -> tuple[Update, ...]:
        """Returns the update of the discriminator and the update of the generator."""
        return (
            Update("discriminator", self.discriminator_loss, ("discriminator/*",)),
            Update("generator", self.loss, ("generator/*",)),
        )

    def discriminator_loss(self, variables: Variables, batch: Batch, context: Context) -> LossOutput:
        """Computes the hinge loss: real images should have logits above 1, and generated images below -1."""
        (fake, real), state = self.compare(variables, batch, context, batch["images"])
        terms = {"real": nn.relu(1 - real), "fake": nn.relu(1 + fake)}
        metrics = {"real_accuracy": 1.0 * (real > 0), "fake_accuracy": 1.0 * (fake < 0)}
        return LossOutput(_sums(terms, batch), _sums(metrics, batch), state)

    def loss(self, variables: Variables, batch: Batch, context: Context) -> LossOutput:
        """Computes the loss of the generator, the negative logit of its images."""
        (fake, _), state = self.compare(variables, batch, context)
        return LossOutput(_sums({"loss": -fake}, batch), state=state)

    def compare(
        self, variables: Variables, batch: Batch, context: Context, images: Any = None
    ) -> tuple[tuple[jax.Array, jax.Array], Mapping[str, Any]]:
        """Returns the discriminator's logits [B] for generated images and for `images`, and the new state."""
        shape = len(batch["labels"]), self.config.model.noise
        noise = jax.random.normal(context.row_rng if context.train else jax.random.key(0), shape)
        rows = Rows(batch["weights"], context.row_axes)
        return apply_model(self.model, variables, noise, batch["labels"], images, rows, context=context)

    def open_data(self) -> ClassificationData:
        """Opens training and validation images."""
        return ClassificationData(self.config, self.label_names, self._sources)

    def assets(self) -> dict[str, str]:
        """Returns {name: fingerprint} of the file of class names and of the file of the judge."""
        judge = {} if self._judge is None else {JUDGE + SUFFIX: self._judge.fingerprint}
        return {LABELS_FILE: self._fingerprint, **judge}

    def evaluate(self, variables: Variables, data: Any) -> Evaluation:
        """Scores generated images against the validation split, and draws a few of them.

        The metrics are "validation/accuracy", the share of images of the requested class, and
        "validation/frechet".
        """
        _, scores = self._score(variables, data.validation)
        accuracy, distance = (score.value for score in scores)
        values = {"validation/accuracy": accuracy / 100, "validation/frechet": distance}
        if not self.config.validation_samples:
            return Evaluation(values)
        labels = np.arange(self.config.validation_samples) % len(self.label_names)
        images = self.generate(variables, labels, seed=SAMPLE_SEED)
        requested = [self.label_names[label] for label in labels]
        rows = self._describe(labels, self._required_judge.judge(images)[0].argmax(-1))
        return Evaluation(
            values, Samples(rows, {"generated": functools.partial(draw_images, images, requested)})
        )

    def report(self, variables: Any, split: str) -> Iterator[Report]:
        """Generates an image with the label of each image of a split.

        Yields the classes that the judge assigns to the generated images, and the scores.
        """
        source = open_split(self.config, split, self.label_names)
        began = time.monotonic()
        examples, scores = self._score(variables, source)
        rate = len(source) / (time.monotonic() - began)
        outputs = [example["judged"] for example in examples]
        yield Report(outputs, scores, examples, {"seed": 0}, rate, source.fingerprint)

    def generate(
        self, variables: Variables, labels: np.ndarray, seed: int | np.random.Generator = 0
    ) -> np.ndarray:
        """Generates an image for each label.

        Args:
          variables: variables of the model.
          labels: int [N].
          seed: seed of the noise, or the generator that draws the noise.

        Returns:
          float32 [N, height, width, C], from -1 to 1.
        """
        rng = np.random.default_rng(seed)
        noise = rng.standard_normal((len(labels), self.config.model.noise), np.float32)
        rows = {"noise": noise, "labels": labels}
        return map_rows(self._generate, variables, rows, self.config.data.batch_size)

    @functools.partial(jax.jit, static_argnums=0)
    def _generate(self, variables: Variables, rows: Mapping[str, jax.Array]) -> jax.Array:
        """Returns the images of the rows of noise and labels."""
        return self.model.apply(variables, rows["noise"], rows["labels"], train=False, method="generate")

    def default_examples(self) -> list[str]:
        """See `tfm.interpret.observation.Observes`."""
        return self.label_names[:2]

    def observe(self, variables: Variables, example: str, max_tokens: int) -> Observation:
        """Records which pixels the generator attends to while it draws an image.

        Args:
          variables: variables of the model.
          example: name of the class of the image.
          max_tokens: ignored, because all images have the same number of pixels.

        Raises:
          UserError: if there is no such class.
        """
        del max_tokens
        if example not in self.label_names:
            raise UserError(f"{example!r} is no class of this model; {suggest(example, self.label_names)}")
        labels = np.array([self.label_names.index(example)])
        noise = np.random.default_rng(SAMPLE_SEED).standard_normal((1, self.config.model.noise), np.float32)
        images, weights = fetch(self._read_attention(variables, noise, labels))
        (probabilities,), _ = self._required_judge.judge(images)
        order = np.argsort(-probabilities, kind="stable")
        choices = [(self.label_names[label], float(probabilities[label])) for label in order]
        return observe_image(example, images[0], weights[:, 0], choices)

    @functools.partial(jax.jit, static_argnums=0)
    def _read_attention(self, variables, noise, labels):
        """Returns images [B, height, width, C] and the attention weights of the generator [1, B, 1, L, M]."""

        def generate():
            return self.model.apply(variables, noise, labels, train=False, method="generate")

        return read_attention(self.model.attention_points["generator"], generate)

    def _score(self, variables: Variables, source: Images) -> tuple[list[dict[str, str]], list[Score]]:
        """Generates and judges an image for each image of a split. Returns their classes and the scores."""
        batches = zip(*self._judge_batches(variables, source), strict=True)
        labels, judged, features, references = (np.concatenate(parts) for parts in batches)
        return self._describe(labels, judged), compute_scores(labels, judged, features, references)

    def _judge_batches(self, variables: Variables, source: Images) -> Iterator[tuple[np.ndarray, ...]]:
        """Generates an image for each image of a split. Only one batch of images is in memory.

        Yields:
          For the images of a batch: their labels and the judged classes of the generated images, int [n], the
          features of the generated images and the features of the real images, float32 [n, F].
        """
        rng = np.random.default_rng(0)
        for batch in eval_batches(source, self.config.data.batch_size):
            count = int(batch["weights"].sum())
            images = self.generate(variables, batch["labels"], rng)
            probabilities, features = self._required_judge.judge(images)
            _, references = self._required_judge.judge(batch["images"])
            parts = batch["labels"], probabilities.argmax(-1), features, references
            yield tuple(part[:count] for part in parts)

    def _describe(self, labels: np.ndarray, judged: np.ndarray) -> list[dict[str, str]]:
        """Returns the names of the requested and of the judged class of each image."""
        names = self.label_names
        pairs = zip(labels, judged, strict=True)
        return [{"class": names[label], "judged": names[judgement]} for label, judgement in pairs]

    @property
    def _required_judge(self) -> ImageJudge:
        """The classifier. A planned task has no classifier, because it generates nothing."""
        assert self._judge is not None
        return self._judge


def plan(config: Config) -> ImageGeneration:
    """Returns a task without class names and without a judge, to plan a run."""
    return ImageGeneration(config, [], "")


def create(config: Config, workdir: str, *, new: bool = True) -> ImageGeneration:
    """Creates the task of a run.

    Raises:
      UserError: if the images cannot be used (see `classification.prepare_labels`) or the classifier that
        judges them cannot be used (see `ImageJudge`).
    """
    judge = ImageJudge(workdir, JUDGE, config.model)
    return ImageGeneration(config, *prepare_labels(plan(config), workdir, new=new), judge)


def _sums(values: Mapping[str, jax.Array], batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Returns {name: (sum, count)} of values [B] over the rows that are not padding."""
    weights = batch["weights"]
    return {name: ((x * weights).sum(), weights.sum()) for name, x in values.items()}
