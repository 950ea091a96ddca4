"""The config of a run that learns to draw captions."""

import dataclasses
from typing import Any, ClassVar

from tfm import models
from tfm.config import OnResume, check_fields, field
from tfm.decoding.config import GenerationConfig
from tfm.systems.dalle import first_stage
from tfm.systems.dalle.captions import CaptionsConfig
from tfm.systems.dalle.model import DALLEConfig
from tfm.training.config import TrainingConfig
from tfm.training.frozen import frozen_field

JUDGE = "judge"  # a field of the config
SATISFIED, TEXT, IMAGE = "satisfied captions", "nats of a caption", "nats of a code"


@dataclasses.dataclass(frozen=True)
class Config:
    """The config of a run that learns to draw captions."""

    task: str = field("text_to_image", "A module of tfm.tasks.", resume=OnResume.FIXED, warm_start=False)
    model: Any = models.model_field(DALLEConfig, "Language model of texts and codes.")
    data: CaptionsConfig = field(CaptionsConfig, "Captions, pictures and their batches.")
    training: TrainingConfig = field(TrainingConfig, "Training procedure.")
    decoding: GenerationConfig = field(
        GenerationConfig, "Sampling of codes. Of several samples, the picture with the best score counts."
    )
    first_stage: str = frozen_field(
        first_stage.FIELD, "Run or export of the task image_tokens. It makes the codes."
    )
    judge: str = frozen_field(
        JUDGE, "Run or export of a classifier of scikit-learn's digits (configs/vit.py). It judges pictures."
    )
    text_weight: float = field(
        1 / 8, "Weight of the loss of the text. The loss of the image has the rest.", minimum=0, maximum=1
    )
    validation_samples: int = field(
        12,
        "Number of drawn captions to show at each evaluation.",
        minimum=0,
        maximum=1000,
        unit="captions",
        resume=OnResume.FREE,
    )
    SCORES: ClassVar[tuple[str, ...]] = (SATISFIED, TEXT, IMAGE)
    output_suffix: ClassVar[str] = "captions"

    def __post_init__(self):
        check_fields(self)

    def without_paths(self) -> "Config":
        """Returns this config without the paths of the frozen models."""
        return dataclasses.replace(self, first_stage="", judge="")
