"""Detection of objects as set prediction (Carion et al. 2020), evaluated by average precision.

For the batch see `tfm.data.scenes`, and for the loss `tfm.tasks.detection.set_loss`.
"""

import dataclasses
import functools
import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tfm import models
from tfm.config import OnResume, check_fields, field
from tfm.data.batches.generated import EVALUATION, GeneratedData, evaluation_batches
from tfm.data.scenes import Scenes, ScenesConfig, open_scenes
from tfm.devices.mesh import fetch
from tfm.errors import UserError
from tfm.evaluation.detection_metrics import Objects, detection_scores
from tfm.interpret.observation import AttentionMap, Observation, Track, image_track
from tfm.layers.observe import read_attention
from tfm.models.detr import DETRConfig
from tfm.tasks.detection.set_loss import LossWeights, set_loss
from tfm.training.config import TrainingConfig
from tfm.training.loss_calls import apply_model
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
from tfm.visualize.pictures import Box, draw_images

SCENE_CLASSES = 10  # digits
SHOWN_SCORE = 0.5  # detections with at least this probability are printed and drawn
NAMES = {"AP50": "validation/ap50", "AP75": "validation/ap75", "AP": "validation/ap"}


def _weight(default: float, help: str) -> Any:
    return field(default, help, minimum=0, maximum=1000)


@dataclasses.dataclass(frozen=True)
class Config:
    """The config of a run that detects objects. The weights are those of the paper."""

    task: str = field("detection", "A module of tfm.tasks.", resume=OnResume.FIXED, warm_start=False)
    model: Any = models.model_field(DETRConfig, "Detector. Its config has channels, classes and queries.")
    data: ScenesConfig = field(ScenesConfig, "Scenes and their batches.")
    training: TrainingConfig = field(TrainingConfig, "Training procedure.")
    box_weight: float = _weight(5.0, "Weight of the L1 distance of boxes, in the loss and in the matching.")
    overlap_weight: float = _weight(2.0, "Weight of the generalized IoU, in the loss and in the matching.")
    empty_weight: float = _weight(0.1, "Weight of the class of no object in the cross-entropy.")
    validation_samples: int = field(
        10,
        "Number of validation scenes to draw at each evaluation.",
        minimum=0,
        maximum=1000,
        resume=OnResume.FREE,
    )
    SCORES: ClassVar[tuple[str, ...]] = tuple(NAMES)
    output_suffix: ClassVar[str] = "objects"

    def __post_init__(self):
        check_fields(self)
        if self.data.max_objects > self.model.queries:
            raise UserError(
                f"Expected model.queries to be at least data.max_objects ({self.data.max_objects}), got "
                f"{self.model.queries}."
            )

    def without_paths(self) -> "Config":
        """Returns this config, because it has no paths."""
        return self


class Detection(Task):
    """A task that trains a detector. For the attributes, see `tfm.training.task.Task`."""

    best = Best("validation/ap50", "max")
    unit = "scenes"

    def __init__(self, config: Config):
        self.config = config
        self.model = models.find(config.model.name).Model(config.model)
        self.d_model = config.model.d_model

    def init(self, rng: jax.Array) -> Variables:
        """Returns the variables before training."""
        size = self.config.data.size
        return self.model.init(rng, jnp.zeros((1, size, size, self.config.model.channels)), train=False)

    def loss(self, variables: Variables, batch: Batch, context: Context) -> LossOutput:
        """Computes the losses of the pairs of all decoder layers. The metrics are those of the last layer."""
        found, state = apply_model(self.model, variables, batch["images"], context=context)
        config = self.config
        weights = LossWeights(config.box_weight, config.overlap_weight, config.empty_weight)
        terms, metrics = set_loss(found, batch, weights)
        return LossOutput(terms, metrics, state)

    def open_data(self) -> GeneratedData:
        """Opens training and validation scenes."""
        hosts = {"host_index": jax.process_index(), "host_count": jax.process_count()}
        return open_scenes(self.config, hosts)

    def evaluate(self, variables: Variables, data: Any) -> Evaluation:
        """Computes the average precision of the validation split, and draws a few scenes."""
        scenes = data.validation
        config = self.config
        detected, truths, images = self._detect(variables, scenes)
        scores = {NAMES[score.name]: score.value / 100 for score in detection_scores(detected, truths)}
        count = min(config.validation_samples, len(images))
        if not count:
            return Evaluation(scores)
        lines = [self._describe(objects, scenes.label_names) for objects in detected[:count]]
        true_lines = [self._describe(objects, scenes.label_names) for objects in truths[:count]]
        rows = [{"true": true, "found": line} for true, line in zip(true_lines, lines, strict=True)]
        boxes = [self._boxes(objects, scenes.label_names) for objects in detected[:count]]
        titles = [f"scene {index}" for index in range(count)]
        draw = functools.partial(draw_images, images[:count], titles, boxes=boxes, columns=5, panel=1.6)
        return Evaluation(scores, Samples(rows, {"detected": draw}))

    def report(self, variables: Any, split: str) -> Iterator[Report]:
        """Yields the detected objects of each scene of a split, and the average precision."""
        if isinstance(variables, tuple):
            raise UserError("Detectors cannot be averaged as an ensemble. Evaluate one run at a time.")
        scenes = Scenes(self.config.data, split)
        began = time.monotonic()
        detected, truths, images = self._detect(variables, scenes)
        rate = len(images) / (time.monotonic() - began)
        lines, true_lines = (
            [self._describe(objects, scenes.label_names) for objects in side] for side in (detected, truths)
        )
        examples = [{"true": true, "found": line} for true, line in zip(true_lines, lines, strict=True)]
        yield Report(lines, detection_scores(detected, truths), examples, {}, rate, scenes.fingerprint)

    def default_examples(self) -> list[str]:
        """See `tfm.interpret.observation.Observes`."""
        return ["0", "1"]

    def observe(self, variables: Variables, example: str, max_tokens: int) -> Observation:
        """Records where the object queries look in one scene of the test split.

        Args:
          variables: variables of the model.
          example: number of the scene, counted from 0.
          max_tokens: ignored, because all scenes have the same size.

        Raises:
          UserError: if there is no such scene.
        """
        del max_tokens
        count = self.config.data.evaluated
        if not (example.isdecimal() and len(example) < 10 and int(example) < count):
            raise UserError(
                f"Expected the number of a scene of the test split, from 0 to {count - 1:,}, got {example!r}."
            )
        scenes = Scenes(self.config.data, "test")
        batch = scenes.assemble([scenes.make(EVALUATION, int(example))], 1)
        found, reads = fetch(self._read_attention(variables, batch))
        probabilities, boxes = found["probabilities"][0], found["boxes"][0]
        classes = probabilities.argmax(-1)
        scores = probabilities.max(-1)
        objects = Objects(boxes, classes, scores)
        labels = [
            f"query {index}: {scenes.label_names[label]} ({score:.0%})"
            for index, (label, score) in enumerate(zip(classes, scores, strict=True))
        ]
        tracks = {
            "places": image_track(batch["images"][0], reads["cross"].shape[-1]),
            "queries": Track("object query", labels, list(range(len(labels))), labels),
        }
        attention = {
            "encoder": AttentionMap("places", "places", reads["encoder"][:, 0]),
            "cross": AttentionMap("queries", "places", reads["cross"][:, 0]),
        }
        result = self._describe(objects, scenes.label_names)
        return Observation(f"scene {example} of the test split", result, tracks, attention, [])

    @functools.partial(jax.jit, static_argnums=0)
    def _read_attention(self, variables, batch):
        """Returns the predictions and {kind: attention weights [layers, B, H, L, M]}."""
        reads = {}
        for kind, point in self.model.attention_points.items():
            found, reads[kind] = read_attention(point, lambda: self._predict(variables, batch))
        return found, reads

    def _detect(
        self, variables: Variables, scenes: Scenes
    ) -> tuple[list[Objects], list[Objects], np.ndarray]:
        """Returns detected objects, true objects and images of all scenes of a validation or test split."""
        detected: list[Objects] = []
        truths: list[Objects] = []
        images: list[np.ndarray] = []
        batches = evaluation_batches(scenes, self.config.data.evaluated, self.config.data.batch_size)
        for batch, found in map_batches(self._predict, variables, batches):
            for row, probabilities in enumerate(found["probabilities"]):
                real = batch["objects"][row] > 0
                detected.append(Objects(found["boxes"][row], probabilities.argmax(-1), probabilities.max(-1)))
                truths.append(Objects(batch["boxes"][row][real], batch["labels"][row][real]))
            images.append(batch["images"])
        return detected, truths, np.concatenate(images)

    @functools.partial(jax.jit, static_argnums=0)
    def _predict(self, variables: Variables, batch: Batch) -> Mapping[str, jax.Array]:
        """Returns probabilities of the classes [B, N, classes] and boxes [B, N, 4]."""
        found = self.model.apply(variables, batch["images"], train=False)
        logits, boxes = (x[-1].astype(jnp.float32) for x in found)
        return {"probabilities": jax.nn.softmax(logits)[..., :-1], "boxes": boxes}

    def _describe(self, objects: Objects, names: list[str]) -> str:
        """Returns a line with the label and the center of each object, in pixels, from left to right."""
        shown = sorted(self._boxes(objects, names), key=lambda box: box.place)
        texts = []
        for box in shown:
            left, top, right, bottom = (self.config.data.size * x for x in box.place)
            texts.append(f"{box.text} at ({(left + right) / 2:.1f}, {(top + bottom) / 2:.1f})")
        return "; ".join(texts)

    def _boxes(self, objects: Objects, names: list[str]) -> list[Box]:
        """Returns the boxes of objects whose score is at least `SHOWN_SCORE`."""
        scores = np.ones(len(objects.labels)) if objects.scores is None else objects.scores
        return [
            Box((x - width / 2, y - height / 2, x + width / 2, y + height / 2), names[label], int(label))
            for (x, y, width, height), label, score in zip(
                objects.boxes.tolist(), objects.labels.tolist(), scores, strict=True
            )
            if score >= SHOWN_SCORE
        ]


def create(config: Config, workdir: str, *, new: bool = True) -> Detection:
    """Creates the task of a run without assets.

    Raises:
      UserError: if the model does not read scenes of digits.
    """
    del workdir, new
    for name, expected in {"channels": 1, "classes": SCENE_CLASSES}.items():
        found = getattr(config.model, name)
        if found != expected:
            raise UserError(f"Expected model.{name} to be {expected} for scenes of digits, got {found}.")
    return Detection(config)
