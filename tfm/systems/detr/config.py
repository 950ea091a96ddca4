"""The config of a run that detects objects."""

import dataclasses
from typing import Any, ClassVar

from tfm import models
from tfm.config import OnResume, check_fields, field
from tfm.errors import UserError
from tfm.systems.detr.boxed_pictures import BoxedPicturesConfig
from tfm.systems.detr.model import DETRConfig
from tfm.training.config import TrainingConfig

NAMES = {"AP50": "validation/ap50", "AP75": "validation/ap75", "AP": "validation/ap"}


def _weight(default: float, help: str) -> Any:
    return field(default, help, minimum=0, maximum=1000)


@dataclasses.dataclass(frozen=True)
class Config:
    """The config of a run that detects objects. The weights are the paper's."""

    task: str = field("detection", "A module of tfm.tasks.", resume=OnResume.FIXED, warm_start=False)
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
        """Returns this config without the paths of this machine, for an export."""
        return dataclasses.replace(self, data=self.data.without_paths())
