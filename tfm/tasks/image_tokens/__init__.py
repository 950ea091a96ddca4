"""Images as grids of codes. See `tfm.tasks.image_tokens.task`."""

from tfm.tasks.image_tokens.config import Config
from tfm.tasks.image_tokens.task import ImageTokens, create

__all__ = ["Config", "ImageTokens", "create"]
