"""A trained classifier that judges generated images. It is not trained further."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import flax.linen as nn
import jax
import numpy as np

from tfm import models
from tfm.checkpoints.trees import check_shapes
from tfm.config import from_mapping
from tfm.errors import UserError
from tfm.training.frozen import FrozenModel, read_frozen
from tfm.training.map_batches import map_rows
from tfm.training.task import Variables

BATCH_SIZE = 256  # maximum number of images that are judged at once
SIZE_FIELDS = ("image_size", "channels", "classes")  # in which generator and classifier must agree


class ImageForm(Protocol):
    """The form of images. The config of a generator is one.

    Attributes:
      image_size: height and width of an image.
      channels: number of channels.
      classes: number of classes.
    """

    @property
    def image_size(self) -> int: ...

    @property
    def channels(self) -> int: ...

    @property
    def classes(self) -> int: ...


@dataclasses.dataclass(frozen=True)
class JudgedImages:
    """The form of images that have no config, see `ImageForm`."""

    image_size: int
    channels: int
    classes: int


@runtime_checkable
class FindsFeatures(Protocol):
    """A classifier with a method that returns what its last layer reads."""

    def features(self, images: jax.Array, *, train: bool) -> jax.Array:
        """Maps images [B, height, width, C] to features [B, F]."""


class ImageJudge:
    """A classifier from another run.

    Args:
      workdir: folder of the run. It contains the classifier as a frozen model.
      name: name of the field of the frozen model.
      images: the form of the judged images.

    Attributes:
      fingerprint: SHA-256 of the file of the classifier.

    Raises:
      UserError: if the run has no classifier, its file is damaged, it has no method `features`, or its images
        or classes differ from the generator's.
    """

    def __init__(self, workdir: str, name: str, images: ImageForm):
        frozen = read_frozen(workdir, name)
        self.fingerprint = frozen.fingerprint
        self._model = _make_classifier(frozen, name)
        self._variables = frozen.variables
        for field in SIZE_FIELDS:
            actual, expected = getattr(self._model.config, field, None), getattr(images, field)
            if actual != expected:
                raise UserError(
                    f"Expected the classifier in config.{name} to have model.{field} {expected} as the "
                    f"judged images, got {actual}. Train a classifier of these images."
                )
        image = np.zeros((1, images.image_size, images.image_size, images.channels), np.float32)
        shapes = jax.eval_shape(lambda: self._model.init(jax.random.key(0), image, train=False))
        check_shapes(shapes, frozen.variables, f"The model of config.{name}")

    def judge(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Computes probabilities and features of images.

        Args:
          images: float [N, height, width, C], from -1 to 1.

        Returns:
          The probabilities of the classes, float32 [N, classes], and the features that the classifier's last
          layer reads, float32 [N, F].

        Raises:
          ValueError: if N is 0.
        """
        size = min(len(images), BATCH_SIZE)
        return map_rows(self._compute, self._variables, {"images": images}, size)

    @functools.partial(jax.jit, static_argnums=0)
    def _compute(self, variables: Variables, rows: Mapping[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """Returns probabilities [B, classes] and features [B, F] of the images of rows."""
        logits: Any = self._model.apply(variables, rows["images"], train=False)
        features: Any = self._model.apply(variables, rows["images"], train=False, method="features")
        return jax.nn.softmax(logits.astype(np.float32)), features.astype(np.float32)


def _make_classifier(frozen: FrozenModel, name: str) -> nn.Module:
    """Returns the module of a frozen classifier."""
    module = models.find(str(frozen.model.get("name", "")))
    model: nn.Module = module.Model(from_mapping(module.Config, frozen.model, "config.model"))
    if not isinstance(model, FindsFeatures):
        raise UserError(
            f"config.{name} needs a classifier of images with a method `features`, such as vit, but "
            f"{frozen.model['name']!r} has none. Train a classifier."
        )
    return model
