"""Images as grids of codes. See `tfm.systems.dalle.image_tokens`."""

from tfm.systems.dalle.image_tokens import ImageTokens, create
from tfm.systems.dalle.image_tokens_config import Config

__all__ = ["Config", "ImageTokens", "create"]
