"""The config of a run that learns codes of images."""

import dataclasses
from typing import Any, ClassVar

from tfm import models
from tfm.config import OnResume, check_fields, field
from tfm.systems.dalle.captions import CaptionsConfig
from tfm.systems.dalle.dvae import DVAEConfig
from tfm.training.config import TrainingConfig

ERROR, USED = "squared error", "used codes"


@dataclasses.dataclass(frozen=True)
class Config:
    """The config of a run that learns codes of images. The defaults are from appendix A.2."""

    task: str = field("image_tokens", "A module of tfm.tasks.", resume=OnResume.FIXED, warm_start=False)
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
        """Returns this config, because it has no paths."""
        return self
