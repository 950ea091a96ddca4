"""Classification of images with cross-entropy, evaluated by accuracy.

A batch (see `tfm.data.images.batches`) is a dict of images float32 [B, height, width, C], labels int32 [B]
and weights float32 [B]. The weight of a padding row is 0.
"""

import dataclasses
import functools
import inspect
import itertools
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tfm import models, tasks
from tfm.config import check_fields, field
from tfm.data.batches.schedule import PrefetchedData
from tfm.data.config import SPLITS, ImagesConfig
from tfm.data.images import (
    ImageBatches,
    Images,
    LabelledPictures,
    assemble,
    eval_batches,
    open_images,
    open_splits,
    sort_classes,
)
from tfm.data.images.inspection import summarize_images
from tfm.data.inspection import Summary
from tfm.data.pictures import fit_picture, read_picture, to_pixels
from tfm.data.sources.splits import list_splits
from tfm.decoding.protocol import as_ensemble
from tfm.devices.mesh import fetch, place_rows
from tfm.errors import UserError
from tfm.evaluation.classification_metrics import classification_scores, confusion_scores, top_scores
from tfm.interpret.observation import Observation, Prediction, image_track, label_track, observe, read_index
from tfm.layers.batch_norm import Rows
from tfm.losses import smoothed_cross_entropy
from tfm.training.assets import LABELS_FILE, read_labels, write_labels
from tfm.training.config import TrainingConfig
from tfm.training.loss_calls import apply_model, mean_metrics
from tfm.training.setup import check_plan
from tfm.training.task import Batch, Best, Context, Evaluation, LossOutput, Report, Task, Variables

DEFAULT_EXAMPLES = 2  # number of images to observe
MAX_PIXEL = 255.0  # value of the brightest pixel of a picture
CHANNEL_KINDS = ("folder", "table", "huggingface")  # kinds of data whose channels data.channels decides
ON_IMAGE = ("patches", "pixels")  # the tracks of attention that are drawn on the image
log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Config:
    """The config of a run that classifies images."""

    task: str = tasks.task_field("image_classification")
    model: Any = models.model_field(
        "vit", "Image classifier. Its config has image_size, channels and classes."
    )
    data: ImagesConfig = field(ImagesConfig, "Images and their batches.")
    training: TrainingConfig = field(TrainingConfig, "Training procedure.")
    label_smoothing: float = field(
        0.0, "Share of the target probability that is spread over all other classes.", minimum=0, less_than=1
    )
    SCORES: ClassVar[tuple[str, ...]] = (
        "accuracy",
        "top-5 accuracy",
        "accuracy of *",
        "* as *",
        "cross-entropy",
    )
    output_suffix: ClassVar[str] = "labels"  # of the file names SPLIT.labels.hypotheses: predictions

    def __post_init__(self):
        check_fields(self)
        missing = [name for name in ("image_size", "channels", "classes") if not hasattr(self.model, name)]
        if missing:
            raise UserError(
                f"The model '{self.model.name}' does not classify images: its config has no {missing[0]}. "
                "Set model.name to an image classifier, such as vit."
            )

    def without_paths(self) -> "Config":
        """Returns this config without the paths of the machine that trained it, for an export."""
        return dataclasses.replace(self, data=self.data.without_paths())


class ClassificationData(PrefetchedData):
    """The training and validation images of a run. Implements `tfm.training.task.Data`.

    Args:
      config: config of the run.
      label_names: names of the classes of the model, by label.
      sources: {split: images} of the splits that are open already.

    Attributes:
      validation: the validation images.

    Raises:
      UserError: if a split cannot be read, or its images or classes do not fit the model.
    """

    def __init__(
        self, config: Config, label_names: list[str], sources: Mapping[str, Images] = MappingProxyType({})
    ):
        self._config = config
        opened = {
            split: sources[split] if split in sources else open_images(config.data, split)
            for split in SPLITS[:2]
        }
        self._splits = {
            split: fit_images(config, split, source, label_names) for split, source in opened.items()
        }
        self.validation = self._splits["validation"]
        batches = ImageBatches(
            self._splits["train"],
            config.data,
            config.training.seed,
            host_index=jax.process_index(),
            host_count=jax.process_count(),
        )
        super().__init__(batches, {split: source.fingerprint for split, source in self._splits.items()})
        sizes = (f"{len(source):,}" for source in self._splits.values())
        log.info("%s training and %s validation images", *sizes)

    def validation_batches(self) -> Iterator[Batch]:
        """Returns an iterator over the batches of the validation split."""
        return eval_batches(self.validation, self._config.data.batch_size)

    def count(self, batch: Batch) -> int:
        """Returns the number of images of a host batch, without padding."""
        return int(batch["weights"].sum())

    def describe(self, parameters: int) -> list[tuple[str, str]]:
        """Returns (name, text) lines about the images, batches, augmentation and epochs of the run."""
        data, model, images = self._config.data, self._config.model, len(self._splits["train"])
        seen = self._config.training.steps * data.batch_size
        changes = [f"cropped to at least {100 * data.random_crop:g} %"] if data.random_crop else []
        changes += [f"moved by up to {data.max_shift} pixels"] if data.max_shift else []
        changes += ["mirrored"] if data.flip else []
        shape = _format_shape((model.image_size, model.image_size, model.channels))
        lines = [
            ("images", f"{images:,} to train on, {len(self.validation):,} to validate"),
            ("batches", f"{data.batch_size:,} images of {shape}"),
            ("augmentation", " and ".join(changes) or "none"),
            ("epochs", f"{seen / images:,.1f} in {self._config.training.steps:,} steps"),
        ]
        if data.batch_size > images:
            sizes = f"data.batch_size {data.batch_size:,} is more than the {images:,} training images"
            lines.append(("warning", f"{sizes}, so a batch contains some images several times."))
        return lines


class Classification(Task):
    """A task that trains a classifier of images.

    Attributes:
      config: `Config`.
      label_names: names of the classes, by label.
      model: the Linen module.
      d_model: model width D for the paper's learning rate, or None if the model's config has no d_model.
      best, unit, validation_scores, validation_loss, averages_models: see `tfm.training.task.Task`.
    """

    best = Best("validation/accuracy", "max")
    validation_scores = ("validation/nll", "validation/accuracy")
    validation_loss = "validation/nll"
    unit = "images"
    example_help = "The number of a picture of the test split, counted from 0, or your own picture"
    averages_models = True

    def __init__(
        self,
        config: Config,
        label_names: list[str],
        fingerprint: str,
        sources: Mapping[str, Images] = MappingProxyType({}),
    ):
        self.config = config
        self.label_names = label_names
        self._sources = sources
        self._fingerprint = fingerprint
        self.model = models.find(config.model.name).Model(config.model)
        self.d_model = getattr(config.model, "d_model", None)
        self._takes_rows = "rows" in inspect.signature(type(self.model).__call__).parameters

    def init(self, rng: jax.Array) -> Variables:
        """Returns the variables before training."""
        model = self.config.model
        image = jnp.zeros((1, model.image_size, model.image_size, model.channels))
        return self.model.init(rng, image, train=False)

    def loss(self, variables: Variables, batch: Batch, context: Context) -> LossOutput:
        """Computes the smoothed cross-entropy per image.

        The metrics are "nll", the loss without smoothing, and "accuracy", how often the label has the largest
        logit. If several logits are largest, the prediction is the class with the lowest index, as in
        `report`. See the module's docstring for the batch. A model with an argument `rows` receives the
        `tfm.layers.Rows` of the batch.
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
        return ClassificationData(self.config, self.label_names, self._sources)

    def assets(self) -> dict[str, str]:
        """Returns {file name: SHA-256} of the file with the names of the classes."""
        return {LABELS_FILE: self._fingerprint}

    def evaluate(self, variables: Variables, data: Any) -> Evaluation:
        """Computes loss and accuracy of the validation split."""
        scores = mean_metrics(self, variables, data.validation_batches())
        return Evaluation({f"validation/{name}": mean for name, mean in scores.items()})

    def report(self, variables: Any, split: str) -> Iterator[Report]:
        """Yields one report, whose outputs are the names of the predicted classes in the order of the split.

        The scores are the accuracy, the top-5 accuracy if there are more than five classes, the
        cross-entropy, the accuracy of each class, and the most frequent mistakes.

        Raises:
          UserError: see `open_split`.
        """
        source = open_split(self.config, split, self.label_names)
        began = time.monotonic()
        log_probabilities, labels = self._predict(variables, source)
        rate = len(source) / (time.monotonic() - began)
        predictions = log_probabilities.argmax(-1)
        outputs = [self.label_names[label] for label in predictions]
        examples = [
            {
                "image": f"{index:,}",
                "label": self.label_names[label],
                "prediction": output,
                "probability": f"{np.exp(log_probabilities[index].max()):.3f}",
            }
            for index, (label, output) in enumerate(zip(labels, outputs, strict=True))
        ]
        accuracy, *others = classification_scores(log_probabilities, labels, self.label_names)
        scores = [accuracy, *top_scores(log_probabilities, labels), *others]
        scores += confusion_scores(predictions, labels, self.label_names)
        yield Report(outputs, scores, examples, {}, rate, source.fingerprint)

    def classify(self, variables: Any, images: np.ndarray) -> np.ndarray:
        """Returns the log-probabilities of the classes.

        Args:
          variables: the variables of the model, or a tuple of the variables of several models. The
            probabilities of several models are averaged.
          images: float [B, height, width, C], from -1 (darkest) to 1 (brightest).

        Returns:
          float32 [B, classes].
        """
        rows = place_rows(images, like=variables)
        return fetch(self._log_probabilities(variables, rows))[: len(images)]

    def default_examples(self) -> list[str]:
        """See `tfm.interpret.observation.Observes`."""
        _, images = self._observed_images
        return [str(index) for index in range(min(DEFAULT_EXAMPLES, len(images)))]

    @functools.cached_property
    def _observed_images(self) -> tuple[str, Images]:
        """The last split that exists, which is the test or the validation split, and its images."""
        split = list_splits(self.config.data, open_images)[-1]
        return split, open_split(self.config, split, self.label_names)

    def observe(self, variables: Variables, example: str, max_tokens: int) -> Observation:
        """Records what the model computes for one image of the test split.

        Without a test split, the image is from the validation split.

        Args:
          variables: variables of the model.
          example: index of the image in the split, counted from 0.
          max_tokens: ignored, because all images have the same number of patches.

        Raises:
          UserError: if there is no such image, or its attention does not fit into the memory.
        """
        del max_tokens
        split, source = self._observed_images
        index = np.array([read_index(example, split, len(source))])
        batch = assemble(*source.take(index), source.largest, rows=1)
        images, labels = batch["images"], batch["labels"]
        title = f"image {example} of the {split} split: {self.label_names[labels[0]]}"
        return self._observe_image(variables, images, title)

    def read_picture(self, content: str | bytes, name: str) -> np.ndarray:
        """Returns the pixels of a picture that is resized like the data, uint8 [height, width, C].

        Args:
          content: path of the file, or its content.
          name: what an error message calls the picture.

        Raises:
          UserError: if the picture cannot be read, or the model does not read 1 or 3 channels.
        """
        model = self.config.model
        if model.channels not in (1, 3):
            raise UserError(
                f"Expected a model of pictures with 1 or 3 channels, but this model reads {model.channels}. "
                "Choose an image of the data by its number."
            )
        picture = read_picture(content, name, model.channels)
        return to_pixels(fit_picture(picture, model.image_size, self.config.data.resizing))

    def observe_picture(self, variables: Variables, picture: np.ndarray, title: str) -> Observation:
        """See `tfm.interpret.observation.ObservesPictures`."""
        images = assemble(picture[None], np.zeros(1, int), MAX_PIXEL, rows=1)["images"]
        return self._observe_image(variables, images, title)

    def _observe_image(self, variables: Variables, images: np.ndarray, title: str) -> Observation:
        """Records what the model computes for a batch of one image."""
        labels = np.zeros(1, np.int32)  # the true class of a picture may be unknown
        probabilities, attention = observe(self.model, variables, images, labels=labels)
        choices = zip(probabilities.ids[0].tolist(), probabilities.best[0].tolist(), strict=True)
        named = [(self.label_names[i], probability) for i, probability in choices]
        tracks = {}
        for each in attention.values():
            for name, count in zip(each[:2], each.weights.shape[2:], strict=True):
                tracks[name] = image_track(images[0], count) if name in ON_IMAGE else label_track(name, count)
        return Observation(title, named[0][0], tracks, attention, [Prediction(named[0][1], named)])

    def _predict(self, variables: Any, source: Images) -> tuple[np.ndarray, np.ndarray]:
        """Returns (log-probabilities float32 [N, classes], labels int32 [N]) of all images of a source."""
        log_probabilities, labels = [], []
        for batch in eval_batches(source, self.config.data.batch_size):
            count = int(batch["weights"].sum())
            log_probabilities.append(self.classify(variables, batch["images"])[:count])
            labels.append(batch["labels"][:count])
        return np.concatenate(log_probabilities), np.concatenate(labels)

    @functools.partial(jax.jit, static_argnums=0)
    def _log_probabilities(self, variables: Any, images: jax.Array) -> jax.Array:
        """Returns the log of the mean of the probabilities of all models, float32 [B, classes]."""
        logits = [self.model.apply(member, images, train=False) for member in as_ensemble(variables)]
        log_probabilities = jax.nn.log_softmax(jnp.stack(logits).astype(jnp.float32))
        return jax.nn.logmeanexp(log_probabilities, axis=0)


def plan(config: Config) -> Classification:
    """Returns the task of a run that does not know the names of the classes yet."""
    return Classification(config, [], "")


def create(config: Config, workdir: str, *, new: bool = True) -> Classification:
    """Creates the task of a run. For `new` and the errors, see `prepare_labels`."""
    return Classification(config, *prepare_labels(plan(config), workdir, new=new))


def inspect_split(config: Config, split: str) -> Summary:
    """Returns what `tfm data` shows of a split, see `tfm.data.images.inspection`.

    Args:
      config: config of a task with labelled images.
      split: name of the split.
    """
    return summarize_images(config.data, split)


def fingerprint(config: Config, split: str) -> str:
    """Returns a hash of the content of a split. The config is as for `inspect_split`."""
    return open_images(config.data, split).fingerprint


class PreparedLabels(NamedTuple):
    """The classes of a run.

    Attributes:
      names: names of the classes, by label.
      fingerprint: SHA-256 of the file of the names in the work directory.
      sources: {split: images} of the splits of a new run, which were opened to find the names.
    """

    names: list[str]
    fingerprint: str
    sources: Mapping[str, Images]


def prepare_labels(planned: Task, workdir: str, *, new: bool = True) -> PreparedLabels:
    """Returns the classes of a run.

    Args:
      planned: task of labelled images that does not know the names of the classes yet.
      workdir: work directory of the run.
      new: if `workdir` has no names of the classes yet, checks that training fits into the memory and that
        the data can be read, and writes the names of `find_names`.

    Raises:
      UserError: if the data or the file of names cannot be used, or the images do not fit the model.
    """
    config = planned.config
    path = os.path.join(workdir, LABELS_FILE)
    sources: dict[str, Images] = {}
    if new and not os.path.exists(path):
        check_plan(planned, config.training)
        sources = open_splits(config.data, open_split=lambda _, split: open_split(config, split, None))
        write_labels(path, find_names(config, sources))
        sources.pop("test", None)  # training does not read it
    return PreparedLabels(*read_labels(path, config.model.classes), sources)


def find_names(config: Config, sources: Mapping[str, Images]) -> list[str]:
    """Returns the names of the classes of a new run, by label.

    The training split may lack the last classes of the other splits. If the data have no names, all splits
    together may lack the last classes of the model. If the classes of pictures are names, such as the names
    of folders, a split may lack any class. A warning reports classes that cannot be learned.

    Args:
      config: config of the run.
      sources: {split: images} of all splits.

    Raises:
      UserError: if the names of two splits differ, or the model has a different number of classes.
    """
    classes = config.model.classes
    names = {split: source.label_names for split, source in sources.items()}
    if any(source.has_class_names for source in sources.values()):
        names = {"train": _join_names(names)}
    split, longest = max(names.items(), key=lambda item: len(item[1]))
    for other, shorter in names.items():
        if shorter != longest[: len(shorter)]:
            label = _find_difference(shorter, longest)
            raise UserError(
                f"Expected the classes of the splits '{other}' and '{split}' to be the same, but class "
                f"{label:,} is {shorter[label]!r} and {longest[label]!r}. Give all splits the same names in "
                "the same order."
            )
    if len(longest) < classes and longest == _number_names(len(longest)):
        log.warning(
            "The data have %s of the %s classes of the model, which cannot learn the others.",
            f"{len(longest):,}",
            f"{classes:,}",
        )
        return _number_names(classes)
    if len(longest) != classes:
        raise UserError(
            f"The split '{split}' has {len(longest):,} classes and the model {classes:,}. "
            f"Set model.classes to {len(longest)}."
        )
    return longest


def _join_names(names: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the names of the classes of all splits in order. Warns of classes that cannot be learned.

    Args:
      names: {split: names of its classes}.
    """
    unseen = sorted({name for split in names.values() for name in split} - set(names["train"]))
    if unseen:
        log.warning("The training split has no pictures of the classes %s.", ", ".join(unseen))
    return sort_classes([name for split in names.values() for name in split])


def open_split(config: Config, split: str, label_names: list[str] | None) -> Images:
    """Opens the images of a split, and checks them against the model.

    Args:
      config: config of the run.
      split: name of the split.
      label_names: names of the classes that the model was trained with. None permits all names.

    Raises:
      UserError: if the split cannot be read, or the image size, channels or class names differ from the
        model's.
    """
    return fit_images(config, split, open_images(config.data, split), label_names)


def fit_images(config: Config, split: str, source: Images, label_names: list[str] | None) -> Images:
    """Returns the images of an open split with the labels of the model.

    For the arguments, see `open_split`.

    Raises:
      UserError: if the image size, channels or class names differ from the model's.
    """
    (image,), _ = source.take(np.zeros(1, int))
    _check_shape(config, split, image.shape)
    if label_names is not None and isinstance(source, LabelledPictures) and source.has_class_names:
        return source.with_label_names(label_names)
    names = source.label_names
    if label_names is None or names == label_names[: len(names)]:
        return source
    expected = (
        f"Expected the classes of the split '{split}' to be the classes that the model was trained with"
    )
    label = _find_difference(names, label_names)
    if label < len(label_names):
        raise UserError(
            f"{expected}, but class {label:,} is {names[label]!r} instead of {label_names[label]!r}. Use "
            "data with the same classes in the same order."
        )
    raise UserError(
        f"{expected}, but class {label:,}, {names[label]!r}, is new. Leave out its images, or train a new "
        f"run with model.classes={len(names)}."
    )


def _check_shape(config: Config, split: str, shape: tuple[int, ...]) -> None:
    """Raises a UserError with advice that works if images [height, width, C] do not fit the model."""
    model = config.model
    expected = (model.image_size, model.image_size, model.channels)
    if shape == expected:
        return
    height, width, channels = shape
    resize = f"data.resize to {model.image_size}"
    can_be_resized = config.data.kind not in ("arrays", "digits")
    if config.data.kind in CHANNEL_KINDS and channels != model.channels:
        raise UserError(
            f"data.channels is {channels} and model.channels {model.channels}. Set both to 1 for grey "
            "pictures, or to 3 for colours."
        )
    if height == width:
        advice = f"Set model.image_size to {height} and model.channels to {channels}"
        if can_be_resized and height != model.image_size:
            advice += f", or set {resize}"
    elif can_be_resized:
        advice = f"The model reads squares: set {resize}, and model.channels to {channels}"
    else:
        advice = "The model reads squares: crop or pad the images in the file"
    raise UserError(
        f"Expected the images of the split '{split}' to be {_format_shape(expected)} (height, width, "
        f"channels) as in the model, got {_format_shape(shape)}. {advice}."
    )


def _find_difference(names: list[str], others: list[str]) -> int:
    """Returns the first label whose names differ, or that only one list has."""
    pairs = enumerate(itertools.zip_longest(names, others))
    return next(label for label, (name, other) in pairs if name != other)


def _number_names(count: int) -> list[str]:
    """Returns the names of classes without names."""
    return [str(label) for label in range(count)]


def _format_shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
