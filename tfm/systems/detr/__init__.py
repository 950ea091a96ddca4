"""Detection of objects as set prediction. See `tfm.systems.detr.task`."""

from tfm.systems.detr.config import Config
from tfm.systems.detr.task import Detection, create

__all__ = ["Config", "Detection", "create"]
