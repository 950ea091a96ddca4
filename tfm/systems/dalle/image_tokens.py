"""Images as grids of codes: trains the discrete autoencoder of DALL-E (Ramesh et al. 2021, section 2.1).

The loss is the negative evidence lower bound with relaxed codes. Temperature and weight of the divergence
follow the step. For the batch see `tfm.systems.dalle.captions`; the texts are not used.
"""

import dataclasses
import functools
import time
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tfm import models, tasks
from tfm.config import OnResume, check_fields, field
from tfm.data.batches.generated import GeneratedData, evaluation_batches
from tfm.data.inspection import Summary
from tfm.errors import UserError
from tfm.evaluation.score import Score
from tfm.systems.dalle.captions import SIZE, CaptionsConfig
from tfm.systems.dalle.data import (
    PictureForm,
    Pictures,
    count_evaluated,
    identify_split,
    open_captions,
    open_pictures,
)
from tfm.systems.dalle.dvae import DVAEConfig, logit_laplace_nll
from tfm.systems.dalle.inspection import summarize_captions
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
from tfm.visualize.pictures import draw_images

ERROR, USED = "squared error", "used codes"


@dataclasses.dataclass(frozen=True)
class Config:
    """The config of a run that learns codes of images. The defaults are from appendix A.2."""

    task: str = tasks.task_field("image_tokens")
    model: Any = models.model_field(DVAEConfig, "Autoencoder.")
    data: CaptionsConfig = field(CaptionsConfig, "Images and their batches.")
    training: TrainingConfig = field(TrainingConfig, "Training procedure.")
    final_temperature: float = field(
        1 / 16,
        "Temperature of the relaxed codes after temperature_steps. It starts at 1.",
        minimum=0.01,
        maximum=1,
    )
    temperature_steps: int = field(
        150_000, "Steps in which the temperature falls.", minimum=1, maximum=10**9, unit="steps"
    )
    divergence_weight: float = field(
        6.6, "Weight of the divergence from uniform codes, beta. It starts at 0.", minimum=0, maximum=1000
    )
    divergence_steps: int = field(
        5000, "Steps in which the weight of the divergence rises.", minimum=1, maximum=10**9, unit="steps"
    )
    pixel_noise: float = field(
        0.0,
        "Width of the uniform noise on pixels in training, where 2 is the range of a pixel. Pixels of few "
        "levels need it, because the likelihood of pixels that are exactly equal has no bound.",
        minimum=0,
        less_than=0.5,  # wider noise leaves the range in which the pixels have a likelihood
    )
    validation_samples: int = field(
        10, "Number of reconstructed images to draw.", minimum=0, maximum=1000, resume=OnResume.FREE
    )
    SCORES: ClassVar[tuple[str, ...]] = (ERROR, USED)
    output_suffix: ClassVar[str] = "codes"

    def __post_init__(self):
        check_fields(self)

    def without_paths(self) -> "Config":
        """Returns this config without the paths of this machine, for an export."""
        return dataclasses.replace(self, data=self.data.without_paths())


def check_pictures(autoencoder: DVAEConfig, data: CaptionsConfig) -> None:
    """Raises a UserError if an autoencoder cannot read the pictures of the data.

    Generated pictures have 16 x 16 pixels and 3 channels. The user's own pictures are read with 1 or 3
    channels and any size.
    """
    allowed: dict[str, tuple[int, ...]] = {"image_size": (SIZE,), "channels": (3,)}
    if data.kind != "digits":
        allowed = {"channels": (1, 3)}
    for name, values in allowed.items():
        actual = getattr(autoencoder, name)
        if actual not in values:
            raise UserError(
                f"Expected model.{name} to be {' or '.join(map(str, values))} for the pictures of data.kind "
                f"'{data.kind}', got {actual}."
            )


class Reconstructions(NamedTuple):
    """The codes of the images of a split, and how well the images are restored from them.

    Attributes:
      images, restored: the first images, and what their codes restore, [n, height, width, C] from -1 to 1.
      codes: of all images, int [N, H, W].
      squared_error: mean over the numbers of all images.
    """

    images: np.ndarray
    restored: np.ndarray
    codes: np.ndarray
    squared_error: float


class ImageTokens(Task):
    """A task that trains a discrete autoencoder. For the attributes, see `tfm.training.task.Task`."""

    best = Best("validation/squared_error", "min")
    validation_scores = ("validation/squared_error", "validation/used_codes")
    validation_loss = "validation/squared_error"
    unit = "images"

    def __init__(self, config: Config):
        self.config = config
        self.model = models.find(config.model.name).Model(config.model)

    def init(self, rng: jax.Array) -> Variables:
        """Returns the variables before training."""
        model = self.config.model
        return self.model.init(
            rng, jnp.zeros((1, model.image_size, model.image_size, model.channels)), train=False
        )

    def temperature(self, step: jax.Array | int) -> jax.Array:
        """Returns the temperature after `step` steps. It falls with a cosine from 1."""
        progress = jnp.minimum(step / self.config.temperature_steps, 1)
        final = self.config.final_temperature
        return final + (1 - final) * (1 + jnp.cos(jnp.pi * progress)) / 2

    def loss(self, variables: Variables, batch: Batch, context: Context) -> LossOutput:
        """Computes the terms "reconstruction" and "divergence", both per number of an image.

        The metrics are "nats_per_code", the divergence of a code, and "temperature". Without training, the
        codes are the most probable ones and pixels have no noise.
        """
        config = self.config
        model = config.model
        images = jnp.asarray(batch["images"])
        noise = None
        if context.train:
            shape = len(images), model.side, model.side, model.codes
            noise = jax.random.gumbel(context.row_rng, shape)
            images = self._add_noise(images, context)
        temperature = self.temperature(context.step)
        outputs, state = apply_model(self.model, variables, images, noise, temperature, context=context)
        weights = batch["weights"]
        nll = logit_laplace_nll(images, outputs.mean, outputs.log_scale).sum((1, 2, 3)) * weights
        log_q = jax.nn.log_softmax(outputs.logits)
        divergence = (jnp.exp(log_q) * (log_q + jnp.log(model.codes))).sum((1, 2, 3)) * weights
        beta = config.divergence_weight * jnp.minimum(context.step / config.divergence_steps, 1)
        count = weights.sum()
        numbers = count * images[0].size  # the paper divides both terms by the numbers of an image
        terms = {"reconstruction": (nll.sum(), numbers), "divergence": (beta * divergence.sum(), numbers)}
        metrics = {
            "nats_per_code": (divergence.sum(), count * model.side**2),
            "temperature": (temperature * count, count),
        }
        return LossOutput(terms, metrics, state)

    def _add_noise(self, images: jax.Array, context: Context) -> jax.Array:
        """Returns images with uniform noise."""
        key = jax.random.fold_in(context.row_rng, 1)
        noise = jax.random.uniform(key, images.shape, minval=-0.5, maxval=0.5)
        return images + self.config.pixel_noise * noise

    def open_data(self) -> GeneratedData:
        """Opens training and validation images."""
        return open_captions(self.config.data, self.config.training.seed, self._form)

    @property
    def _form(self) -> PictureForm:
        """The size of the pictures. Captions are not read."""
        return PictureForm(self.config.model.image_size, self.config.model.channels)

    def evaluate(self, variables: Variables, data: Any) -> Evaluation:
        """Computes the squared error of restored validation images and the number of different codes.

        Also draws `config.validation_samples` images next to their restored versions.
        """
        result = self.reconstruct(variables, data.validation, self.config.validation_samples)
        scores = {
            "validation/squared_error": result.squared_error,
            "validation/used_codes": float(len(np.unique(result.codes))),
        }
        count = len(result.images)
        if not count:
            return Evaluation(scores)
        rows = [{"codes": " ".join(map(str, grid.ravel()))} for grid in result.codes[:count]]
        shown = np.concatenate([result.images, result.restored])
        titles = ["image"] * count + ["restored"] * count
        draw = functools.partial(draw_images, shown, titles, columns=count)
        return Evaluation(scores, Samples(rows, {"restored": draw}))

    def report(self, variables: Any, split: str) -> Iterator[Report]:
        """Yields one report, whose outputs are the codes of each image, row by row, separated by blanks.

        The scores are the squared error of the restored images and the number of different codes.

        Raises:
          UserError: if the split cannot be used.
        """
        pictures = open_pictures(self.config.data, split, self._form)
        began = time.monotonic()
        result = self.reconstruct(variables, pictures, samples=0)
        codes = result.codes
        rate = len(codes) / (time.monotonic() - began)
        signature = f"{len(codes):,} images"
        used = float(len(np.unique(codes)))
        scores = [
            Score(ERROR, result.squared_error, f"{signature}, from -1 to 1", digits=4),
            Score(USED, used, f"of {self.config.model.codes:,}, {signature}", digits=0),
        ]
        lines = [" ".join(map(str, grid.ravel())) for grid in codes]
        yield Report(lines, scores, [{"codes": line} for line in lines], {}, rate, pictures.fingerprint)

    def reconstruct(self, variables: Variables, pictures: Pictures, samples: int) -> Reconstructions:
        """Encodes and restores the images of a split. Only one batch and the samples are in memory.

        Args:
          variables: variables of the model.
          pictures: the split.
          samples: number of images to return, the first of the split.
        """
        data = self.config.data
        images: list[np.ndarray] = []
        restored: list[np.ndarray] = []
        codes: list[np.ndarray] = []
        sum_of_errors = 0.0
        numbers = 0
        batches = evaluation_batches(pictures, count_evaluated(data, pictures), data.batch_size)
        for batch, (outputs, grids) in map_batches(self._reconstruct, variables, batches):
            sum_of_errors += float(((batch["images"] - outputs) ** 2).sum(dtype=np.float64))
            numbers += outputs.size
            missing = samples - sum(map(len, images))
            images.append(batch["images"][:missing].copy())  # a view would keep the whole batch in memory
            restored.append(outputs[:missing].copy())
            codes.append(grids)
        return Reconstructions(
            np.concatenate(images), np.concatenate(restored), np.concatenate(codes), sum_of_errors / numbers
        )

    @functools.partial(jax.jit, static_argnums=0)
    def _reconstruct(self, variables: Variables, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Returns restored images [B, height, width, C] and codes [B, H, W] of the images of a batch."""
        codes = self.model.apply(variables, batch["images"], method="encode")
        return self.model.apply(variables, codes, method="decode"), codes


def inspect_split(config: Config, split: str) -> Summary:
    """Returns what `tfm data` shows of a split."""
    return summarize_captions(split, config.data)


def fingerprint(config: Config, split: str) -> str:
    """Returns the fingerprint of the content of a split."""
    return identify_split(config.data, split)


def create(config: Config, workdir: str, *, new: bool = True) -> ImageTokens:
    """Creates the task of a run without assets.

    Raises:
      UserError: if the autoencoder cannot read the pictures of the data.
    """
    del workdir, new
    check_pictures(config.model, config.data)
    return ImageTokens(config)
