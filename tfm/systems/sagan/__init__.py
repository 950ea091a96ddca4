"""Adversarial generation of images. See `tfm.systems.sagan.task`."""

from tfm.systems.sagan.config import Config
from tfm.systems.sagan.task import ImageGeneration, create, plan

__all__ = ["Config", "ImageGeneration", "create", "plan"]
