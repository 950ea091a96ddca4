"""Images from texts. See `tfm.systems.dalle.text_to_image`."""

from tfm.systems.dalle.config import Config
from tfm.systems.dalle.observe import make_inputs
from tfm.systems.dalle.text_to_image import DIGITS, TextToImage, create

__all__ = ["DIGITS", "Config", "TextToImage", "create", "make_inputs"]
