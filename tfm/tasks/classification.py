"""Classification of images: a model of logits, cross-entropy, accuracy.

A batch (see `tfm.data.image_batches`) is a dict: images float32 [B, height, width, C], labels int32 [B] and
weights float32 [B], which are 0 for a row that is padding.
"""

import dataclasses
import hashlib
import inspect
import itertools
import json
import logging
import os
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tfm import models
from tfm.data.batches.schedule import prefetch
from tfm.data.config import SPLITS
from tfm.data.image_batches import ImageBatches, assemble, eval_batches
from tfm.data.images import ImageDataConfig, Images, check_splits, open_images
from tfm.errors import UserError
from tfm.evaluation.classification_metrics import classification_scores
from tfm.fields import NEVER, check_fields, field
from tfm.io.files import atomic_file, read_limited
from tfm.layers.batch_norm import Rows
from tfm.losses import smoothed_cross_entropy
from tfm.memory import check_training_fits
from tfm.models.vit import ViTConfig
from tfm.training.config import TrainingConfig
from tfm.training.model_calls import apply_model
from tfm.training.reporting import add_sums, means
from tfm.training.task import Batch, Best, Context, Evaluation, LossOutput, Report, Task, Variables

LABELS_FILE = "labels.json"  # the names of the classes, a list
LARGEST_LABELS = 1 << 28  # bytes
log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Config:
    """A run that classifies images."""

    task: str = field("classification", "A module of tfm.tasks.", resume=NEVER, warm_start=False)
    model: Any = models.model_field(
        ViTConfig, "The model that model.name names; it has image_size, channels and classes."
    )
    data: ImageDataConfig = field(ImageDataConfig, "Where the images come from and how they are batched.")
    training: TrainingConfig = field(TrainingConfig, "The procedure.")
    label_smoothing: float = field(
        0.0, "Probability that the target gives to all other classes together.", least=0, below=1
    )

    def __post_init__(self):
        check_fields(self)
        missing = [name for name in ("image_size", "channels", "classes") if not hasattr(self.model, name)]
        if missing:
            raise UserError(
                f"The model '{self.model.name}' does not classify images: its config has no {missing[0]}."
            )

    @property
    def output_suffix(self) -> str:
        """Files of predictions are called SPLIT.labels.hypotheses."""
        return "labels"

    def without_paths(self) -> "Config":
        """This config without the paths of the machine that trained it, for an export."""
        data = dataclasses.replace(self.data, directory="", file=os.path.basename(self.data.file))
        return dataclasses.replace(self, data=data)


class ClassificationData:
    """Training and validation images of a run; a `tfm.training.task.Data`.

    Raises:
      UserError: a split cannot be read, or its images or labels are not those of the model.
    """

    def __init__(self, config: Config, label_names: list[str]):
        self._config = config
        self._splits = {split: open_images(config.data, split) for split in SPLITS[:2]}
        for split, source in self._splits.items():
            check_images(source, config.model, split, label_names)
        self._train = ImageBatches(
            self._splits["train"],
            config.data,
            config.training.seed,
            host_index=jax.process_index(),
            host_count=jax.process_count(),
        )
        sizes = (f"{len(source):,}" for source in self._splits.values())
        log.info("%s training and %s validation images", *sizes)

    def train_batches(self, start_step: int) -> Iterator[Batch]:
        """Endless batches from `start_step` on, prefetched."""
        return prefetch(self._train, start_step)

    def validation_batches(self) -> Iterator[Batch]:
        """One pass over the validation split."""
        return eval_batches(self._splits["validation"], self._config.data.batch_size)

    def identity(self) -> dict[str, str]:
        """Hashes of the splits."""
        return {split: source.fingerprint for split, source in self._splits.items()}

    def describe_batch(self, step: int) -> dict[str, Any]:
        """See `ImageBatches.describe`."""
        return self._train.describe(step)

    def count(self, batch: Batch) -> int:
        """Images of a host batch."""
        return int(batch["weights"].sum())

    def example(self) -> Batch:
        """A batch of zeros of the one shape there is."""
        model = self._config.model
        shape = (model.image_size, model.image_size, model.channels)
        return assemble(np.zeros((0, *shape)), np.zeros(0, int), 1.0, self._train.rows)

    def describe(self, parameters: int) -> list[tuple[str, str]]:
        """Batches, augmentation and length of the run."""
        data, model, images = self._config.data, self._config.model, len(self._splits["train"])
        seen = self._config.training.steps * data.batch_size
        changes = [f"moved by up to {data.max_shift} pixels"] if data.max_shift else []
        changes += ["mirrored"] if data.flip else []
        lines = [
            ("images", f"{images:,} to train on, {len(self._splits['validation']):,} to validate"),
            (
                "batches",
                f"{data.batch_size:,} images of {model.image_size} x {model.image_size} x {model.channels}",
            ),
            ("augmentation", " and ".join(changes) or "none"),
            ("epochs", f"{seen / images:,.1f} in {self._config.training.steps:,} steps"),
        ]
        if data.batch_size > images:
            several = f"data.batch_size {data.batch_size:,} is more than the {images:,} training images"
            lines.append(("warning", f"{several}: a batch has some of them several times."))
        return lines


class Classification(Task):
    """A task that trains a classifier of images.

    Attributes:
      config: `Config`.
      label_names: of the classes.
      model: the Linen module.
      d_model: D of the model, for the paper's learning rate; None where it has none.
      best, unit: see `tfm.training.task.Task`.
    """

    best = Best("validation/accuracy", "max")
    unit = "images"

    def __init__(self, config: Config, label_names: list[str], fingerprint: str):
        self.config = config
        self.label_names = label_names
        self._fingerprint = fingerprint
        self.model = models.find(config.model.name).Model(config.model)
        self.d_model = getattr(config.model, "d_model", None)
        self._takes_rows = "rows" in inspect.signature(type(self.model).__call__).parameters
        self._evaluation_loss = jax.jit(
            lambda variables, batch: self.loss(variables, batch, Context()).metrics
        )
        self._log_probabilities = jax.jit(self._log_softmax)

    def init(self, rng: jax.Array) -> Variables:
        """Returns the variables before training."""
        model = self.config.model
        image = jnp.zeros((1, model.image_size, model.image_size, model.channels))
        return self.model.init(rng, image, train=False)

    def loss(self, variables: Variables, batch: Batch, context: Context) -> LossOutput:
        """Computes the smoothed cross-entropy per image.

        The metrics are "nll", the loss without smoothing, and "accuracy", how often the label has the largest
        logit. Of equal logits the first counts, as in `report`. See the module's docstring for the batch. A
        model that takes `rows` is given the `tfm.layers.Rows` of the batch.
        """
        labels, weights = batch["labels"], batch["weights"]
        rows = {"rows": Rows(weights, context.row_axes)} if self._takes_rows else {}
        logits, state = apply_model(self.model, variables, batch["images"], context=context, **rows)
        loss = smoothed_cross_entropy(logits, labels, weights, smoothing=self.config.label_smoothing)
        nll = smoothed_cross_entropy(logits, labels, weights, smoothing=0.0)
        correct = logits.argmax(-1) == labels
        metrics = {"nll": nll, "accuracy": ((correct * weights).sum(), nll[1])}
        return LossOutput({"loss": loss}, metrics, state)

    def open_data(self) -> ClassificationData:
        """Opens training and validation images."""
        return ClassificationData(self.config, self.label_names)

    def assets(self) -> dict[str, str]:
        """{file name: SHA-256} of the names of the classes."""
        return {LABELS_FILE: self._fingerprint}

    def evaluate(self, variables: Variables, data: Any) -> Evaluation:
        """Computes loss and accuracy of the validation split."""
        sums: dict[str, Any] = {}
        for batch in data.validation_batches():
            add_sums(sums, self._evaluation_loss(variables, batch))
        return Evaluation({f"validation/{name}": mean for name, mean in means(sums).items()})

    def report(self, variables: Any, split: str) -> Iterator[Report]:
        """Yields the predicted class of each image, the cross-entropy, and the accuracies."""
        source = open_images(self.config.data, split)
        check_images(source, self.config.model, split, self.label_names)
        began = time.monotonic()
        found, labels = self._predict(variables, source)
        rate = len(source) / (time.monotonic() - began)
        predictions = found.argmax(-1)
        outputs = [self.label_names[label] for label in predictions]
        examples = [
            {
                "image": f"{index:,}",
                "label": self.label_names[label],
                "prediction": outputs[index],
                "probability": f"{np.exp(found[index, predictions[index]]):.3f}",
            }
            for index, label in enumerate(labels)
        ]
        scores = classification_scores(found, labels, self.label_names)
        yield Report(outputs, scores, examples, {}, rate, source.fingerprint)

    def classify(self, variables: Any, images: np.ndarray) -> np.ndarray:
        """Returns the log-probabilities of the classes.

        Args:
          variables: of the model, or a tuple of those of several models, whose probabilities are averaged.
          images: float [B, height, width, C], from -1, the darkest, to 1.

        Returns:
          float32 [B, classes].
        """
        return np.asarray(self._log_probabilities(variables, images))

    def _predict(self, variables, source):
        """(log-probabilities [N, classes], labels [N]) of all images of a source."""
        found, labels = [], []
        for batch in eval_batches(source, self.config.data.batch_size):
            count = int(batch["weights"].sum())
            found.append(self.classify(variables, batch["images"])[:count])
            labels.append(batch["labels"][:count])
        return np.concatenate(found), np.concatenate(labels)

    def _log_softmax(self, variables, images):
        members = variables if isinstance(variables, tuple) else (variables,)
        logits = [self.model.apply(member, images, train=False) for member in members]
        each = jax.nn.log_softmax(jnp.stack(logits).astype(jnp.float32))
        return jax.nn.logsumexp(each, axis=0) - jnp.log(len(members))


def plan_model(config: Config) -> Any:
    """The Linen module of a run."""
    return models.find(config.model.name).Model(config.model)


def create(config: Config, workdir: str, *, new: bool = True) -> Classification:
    """The task of a run, with the names of the classes in `workdir`; a `new` run writes them there.

    Raises:
      UserError: the data or the file of names cannot be used, or the model is for other images.
    """
    path = os.path.join(workdir, LABELS_FILE)
    if new:
        check_training_fits(plan_model(config), config.training)
        resumed = os.path.exists(path)  # which does not end for its test split
        check_splits(
            config.data, [split for split in SPLITS[: 2 if resumed else 3] if _is_wanted(config, split)]
        )
        if not resumed:
            source = open_images(config.data, "train")
            check_images(source, config.model, "train", source.label_names)
            with atomic_file(path, "w") as file:
                json.dump(source.label_names, file)
    return Classification(config, *_read_labels(path, config.model.classes))


def check_images(source: Images, model: Any, split: str, label_names: list[str]) -> None:
    """Checks the images of a split against a model.

    Raises:
      UserError: another size, another number of channels or of classes, or classes of other names.
    """
    (image,), _ = source.take(np.zeros(1, int))
    expected = (model.image_size, model.image_size, model.channels)
    if image.shape != expected:
        raise UserError(
            f"The images of the split '{split}' are {_shown(image.shape)} (height, width, channels) and the "
            f"model is for {_shown(expected)}: set model.image_size and model.channels."
        )
    names = source.label_names
    if len(names) != model.classes and label_names is names:
        raise UserError(
            f"The split '{split}' has {len(names):,} classes and the model {model.classes:,}: "
            "set model.classes."
        )
    if names != label_names[: len(names)]:
        raise UserError(
            f"The classes of the split '{split}' are not those that the model was trained with: "
            f"{', '.join(itertools.islice(names, 10))} and {', '.join(itertools.islice(label_names, 10))}."
        )


def _is_wanted(config, split):
    """A test split is optional."""
    return split != "test" or bool(config.data.test)


def _read_labels(path, classes):
    """The names of the classes, and the SHA-256 of their file."""
    try:
        content = read_limited(path, LARGEST_LABELS)
    except FileNotFoundError:
        raise UserError(f"Expected the names of the classes at {path}, but there are none.") from None
    try:
        names = json.loads(content)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"Expected a list of texts in {path}: copy it again.")
    if len(names) != classes:
        raise UserError(f"{path} has {len(names):,} classes and the model {classes:,}: set model.classes.")
    return names, hashlib.sha256(content).hexdigest()


def _shown(shape):
    return " x ".join(map(str, shape))
