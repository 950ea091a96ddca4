"""Detection of objects as set prediction (Carion et al. 2020), evaluated by average precision.

For the batch see `tfm.systems.detr.batches`, and for the loss `tfm.systems.detr.set_loss`.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tfm import models, tasks
from tfm.config import OnResume, check_fields, field
from tfm.data.batches.generated import EVALUATION, GeneratedData, evaluation_batches
from tfm.data.inspection import Summary
from tfm.data.pictures import read_picture
from tfm.data.sources.splits import list_splits
from tfm.devices.mesh import fetch
from tfm.errors import UserError
from tfm.evaluation.score import Score
from tfm.interpret.observation import Observation, read_index
from tfm.layers.observe import read_attention
from tfm.systems.detr.batches import BoxedPicture, BoxedPicturesConfig, picture_size
from tfm.systems.detr.data import Pictures, identify_split, open_pictures, open_source, open_splits
from tfm.systems.detr.inspection import summarize_scenes, summarize_source
from tfm.systems.detr.metrics import SIZES, Detections, Truth, detection_scores, to_pixels
from tfm.systems.detr.model import Detections as LayerPredictions
from tfm.systems.detr.model import DETRConfig
from tfm.systems.detr.observe import Objects, describe_objects, make_boxes, observe_queries
from tfm.systems.detr.scenes import Scenes
from tfm.systems.detr.set_loss import LossWeights, set_loss
from tfm.systems.detr.stored_pictures import resize
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
from tfm.visualize.pictures import draw_images

DEFAULT_EXAMPLES = 2  # number of pictures to observe
NAMES = {"AP50": "validation/ap50", "AP75": "validation/ap75", "AP": "validation/ap"}


def _weight(default: float, help: str) -> Any:
    return field(default, help, minimum=0, maximum=1000)


@dataclasses.dataclass(frozen=True)
class Config:
    """The config of a run that detects objects. The weights are the paper's."""

    task: str = tasks.task_field("detection")
    model: Any = models.model_field(DETRConfig, "Detector. Its config has channels, classes and queries.")
    data: BoxedPicturesConfig = field(BoxedPicturesConfig, "Pictures with boxes and their batches.")
    training: TrainingConfig = field(TrainingConfig, "Training procedure.")
    box_weight: float = _weight(5.0, "Weight of the L1 distance of boxes, in the loss and in the matching.")
    overlap_weight: float = _weight(2.0, "Weight of the generalized IoU, in the loss and in the matching.")
    empty_weight: float = _weight(0.1, "Weight of the class of no object in the cross-entropy.")
    validation_samples: int = field(
        10,
        "Number of validation pictures to draw at each evaluation.",
        minimum=0,
        maximum=1000,
        resume=OnResume.FREE,
    )
    SCORES: ClassVar[tuple[str, ...]] = (*NAMES, *(f"AP {size}" for size in SIZES))
    output_suffix: ClassVar[str] = "objects"

    def __post_init__(self):
        check_fields(self)
        if self.data.max_objects > self.model.queries:
            raise UserError(
                f"Expected model.queries to be at least data.max_objects ({self.data.max_objects}), got "
                f"{self.model.queries}."
            )

    def without_paths(self) -> "Config":
        """Returns this config without the paths of this machine, for an export."""
        return dataclasses.replace(self, data=self.data.without_paths())


class Result(NamedTuple):
    """The objects of a picture.

    Attributes:
      detected, truth: the detected and the true objects of the batch, to print and to draw.
      size: height and width in pixels, without padding.
      detections, true_objects: the objects in pixels of the picture before it was resized, for the scores.
        The true objects are all that the data have, as pycocotools counts them.
    """

    detected: Objects
    truth: Objects
    size: tuple[int, int]
    detections: Detections
    true_objects: Truth


class Detection(Task):
    """A task that trains a detector. For the attributes, see `tfm.training.task.Task`."""

    best = Best("validation/ap50", "max")
    validation_scores = ("validation/loss", *NAMES.values())
    validation_loss = "validation/loss"
    unit = "pictures"
    example_help = "The number of a picture of the test split, counted from 0, or your own picture"

    def __init__(self, config: Config):
        self.config = config
        self.model = models.find(config.model.name).Model(config.model)
        self.d_model = config.model.d_model

    def init(self, rng: jax.Array) -> Variables:
        """Returns the variables before training."""
        data = self.config.data
        image = jnp.zeros((1, data.height, data.width, self.config.model.channels))
        return self.model.init(rng, image, train=False)

    def loss(self, variables: Variables, batch: Batch, context: Context) -> LossOutput:
        """Computes the losses of the pairs of all decoder layers. The metrics describe the last layer."""
        predictions, state = apply_model(
            self.model, variables, batch["images"], batch["valid"], context=context
        )
        return LossOutput(*set_loss(predictions, batch, self._loss_weights), state)

    @property
    def _loss_weights(self) -> LossWeights:
        """The weights of the config."""
        return LossWeights(self.config.box_weight, self.config.overlap_weight, self.config.empty_weight)

    def open_data(self) -> GeneratedData:
        """Opens training and validation pictures."""
        return open_splits(self.config)

    def evaluate(self, variables: Variables, data: Any) -> Evaluation:
        """Computes the loss and the average precision of the validation split, and draws a few pictures.

        The model reads each picture once.
        """
        pictures = data.validation
        sums: dict[str, tuple[float, float]] = {}

        def predict(variables: Variables, batch: Batch) -> Mapping[str, jax.Array]:
            predictions, terms = self._predict_and_compare(variables, batch)
            add_sums(sums, terms)
            return predictions

        results = self._detect(predict, variables, pictures)
        scores = {NAMES[x.name]: x.value / 100 for x in _scores(results) if x.name in NAMES}
        scores["validation/loss"] = sum(means(sums).values())
        shown = results[: self.config.validation_samples]
        if not shown:
            return Evaluation(scores)
        names = pictures.label_names
        canvas = self.config.data.height, self.config.data.width
        boxes = [make_boxes(x.detected, names, np.divide(x.size, canvas).tolist()) for x in shown]
        titles = [f"picture {index}" for index in range(len(shown))]
        images = next(evaluation_batches(pictures, len(shown), len(shown)))["images"]
        draw = functools.partial(draw_images, images, titles, boxes=boxes, columns=5, panel=1.6)
        return Evaluation(scores, Samples(_describe(shown, names), {"detected": draw}))

    def report(self, variables: Any, split: str) -> Iterator[Report]:
        """Yields one report, whose outputs are the detected objects of each picture, see `describe_objects`.

        For the scores, see `detection_scores`.

        Raises:
          UserError: if the split cannot be used.
        """
        pictures = open_pictures(self.config.data, split, self.config.model)
        began = time.monotonic()
        results = self._detect(self._predict, variables, pictures)
        rate = len(results) / (time.monotonic() - began)
        examples = _describe(results, pictures.label_names)
        lines = [example["found"] for example in examples]
        yield Report(lines, _scores(results), examples, {}, rate, pictures.fingerprint)

    def default_examples(self) -> list[str]:
        """See `tfm.interpret.observation.Observes`."""
        _, pictures = self._observed_pictures
        return [str(index) for index in range(min(DEFAULT_EXAMPLES, pictures.evaluated))]

    def observe(self, variables: Variables, example: str, max_tokens: int) -> Observation:
        """Records where the object queries look in one picture of the test split.

        Without a test split, the picture is from the validation split.

        Args:
          variables: variables of the model.
          example: number of the picture, counted from 0.
          max_tokens: ignored, because all pictures have the same size.

        Raises:
          UserError: if there is no such picture.
        """
        del max_tokens
        split, pictures = self._observed_pictures
        index = read_index(example, split, pictures.evaluated)
        picture = pictures.make(EVALUATION, index)
        return self._observe_picture(variables, picture, f"picture {index} of the {split} split")

    def read_picture(self, content: str | bytes, name: str) -> np.ndarray:
        """Returns a picture, resized until it fits, float32 [h, w, C] from -1 to 1.

        Raises:
          UserError: if the picture cannot be read.
        """
        return resize(read_picture(content, name, self.config.model.channels), self.config.data)

    def observe_picture(self, variables: Variables, picture: np.ndarray, title: str) -> Observation:
        """See `tfm.interpret.observation.ObservesPictures`."""
        boxed = BoxedPicture(picture, np.zeros((0, 4), np.float32), np.zeros(0, int))
        return self._observe_picture(variables, boxed, title)

    def _observe_picture(self, variables: Variables, picture: BoxedPicture, title: str) -> Observation:
        """Records where the object queries look in a picture."""
        _, pictures = self._observed_pictures
        batch = pictures.assemble([picture], 1)
        predictions, reads = fetch(self._read_attention(variables, batch))
        return observe_queries(title, batch, predictions, reads, pictures.label_names)

    @functools.cached_property
    def _observed_pictures(self) -> tuple[str, Pictures]:
        """The last split that exists, which is the test or the validation split, and its pictures."""

        def open_split(data: BoxedPicturesConfig, split: str) -> Pictures:
            return open_pictures(data, split, self.config.model)

        split = list_splits(self.config.data, open_split)[-1]
        return split, open_split(self.config.data, split)

    @functools.partial(jax.jit, static_argnums=0)
    def _read_attention(self, variables, batch):
        """Returns the predictions and {kind: attention weights [layers, B, H, L, M]}."""
        reads = {}
        for kind, point in self.model.attention_points.items():
            predictions, reads[kind] = read_attention(
                point, lambda: self._describe_last_layer(self._apply(variables, batch))
            )
        return predictions, reads

    def _detect(
        self,
        predict: Callable[[Variables, Batch], Mapping[str, jax.Array]],
        variables: Variables,
        pictures: Pictures,
    ) -> list[Result]:
        """Detects the objects of all pictures of a validation or test split.

        Args:
          predict: function with the arguments and the result of `_predict`.
          variables: variables of the model.
          pictures: the split.
        """
        results: list[Result] = []
        batches = evaluation_batches(pictures, pictures.evaluated, self.config.data.batch_size)
        for batch, predictions in map_batches(predict, variables, batches):
            for row, probabilities in enumerate(predictions["probabilities"]):
                real = batch["objects"][row] > 0
                detected = Objects(predictions["boxes"][row], probabilities.argmax(-1), probabilities.max(-1))
                truth = Objects(batch["boxes"][row][real], batch["labels"][row][real])
                index = len(results)
                pixels = to_pixels(detected.boxes, pictures.size(index))
                detections = Detections(pixels, detected.labels, probabilities.max(-1))
                size = picture_size(batch, row)
                results.append(Result(detected, truth, size, detections, pictures.truth(index)))
        return results

    @functools.partial(jax.jit, static_argnums=0)
    def _predict(self, variables: Variables, batch: Batch) -> Mapping[str, jax.Array]:
        """Returns the result of `_describe_last_layer` for the pictures of a batch."""
        return self._describe_last_layer(self._apply(variables, batch))

    @functools.partial(jax.jit, static_argnums=0)
    def _predict_and_compare(
        self, variables: Variables, batch: Batch
    ) -> tuple[Mapping[str, jax.Array], Mapping[str, SumAndCount]]:
        """Returns the result of `_predict`, and the terms of the loss without dropout."""
        predictions = self._apply(variables, batch)
        terms, _ = set_loss(predictions, batch, self._loss_weights)
        return self._describe_last_layer(predictions), terms

    def _apply(self, variables: Variables, batch: Batch) -> LayerPredictions:
        """Returns the logits and the boxes of all decoder layers."""
        return self.model.apply(variables, batch["images"], batch["valid"], train=False)

    def _describe_last_layer(self, predictions: LayerPredictions) -> Mapping[str, jax.Array]:
        """Returns probabilities of the classes [B, N, classes] and boxes [B, N, 4] of the last layer."""
        logits, boxes = (x[-1].astype(jnp.float32) for x in predictions)
        return {"probabilities": jax.nn.softmax(logits)[..., :-1], "boxes": boxes}


def fingerprint(config: Config, split: str) -> str:
    """Returns the fingerprint of the content of a split."""
    return identify_split(config.data, split)


def create(config: Config, workdir: str, *, new: bool = True) -> Detection:
    """Creates the task of a run without assets."""
    del workdir, new
    return Detection(config)


def inspect_split(config: Config, split: str) -> Summary:
    """Returns what `tfm data` shows of a split."""
    data = config.data
    if data.kind == "digits":
        return summarize_scenes(split, Scenes(data, split))
    return summarize_source(split, open_source(data, split), data, config.model.classes)


def _scores(results: Sequence[Result]) -> list[Score]:
    """Computes the average precision."""
    detections = [result.detections for result in results]
    return detection_scores(detections, [result.true_objects for result in results])


def _describe(results: Sequence[Result], names: list[str]) -> list[dict[str, str]]:
    """Returns the true and the detected objects of each picture as text."""
    return [
        {
            "true": describe_objects(result.truth, names, result.size),
            "found": describe_objects(result.detected, names, result.size),
        }
        for result in results
    ]
