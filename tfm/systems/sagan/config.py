"""The config of a run that generates images."""

import dataclasses
from typing import Any, ClassVar

from tfm import models
from tfm.config import OnResume, check_fields, field
from tfm.data.config import ImagesConfig
from tfm.systems.sagan.model import SelfAttentionGANConfig
from tfm.training.config import TrainingConfig
from tfm.training.frozen import frozen_field

# Scores compare the images of a split with as many generated images, which have the same labels.
ACCURACY = "accuracy of requested classes"
DISTANCE = "Frechet distance of features"
JUDGE = "judge"


@dataclasses.dataclass(frozen=True)
class Config:
    """The config of a run that generates images."""

    task: str = field("image_generation", "A module of tfm.tasks.", resume=OnResume.FIXED, warm_start=False)
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
