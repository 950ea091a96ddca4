"""Images from texts. See `tfm.tasks.text_to_image.task`."""

from tfm.tasks.text_to_image.config import Config
from tfm.tasks.text_to_image.observe import make_inputs
from tfm.tasks.text_to_image.task import DIGITS, TextToImage, create

__all__ = ["DIGITS", "Config", "TextToImage", "create", "make_inputs"]
