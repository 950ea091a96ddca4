"""Adversarial generation of images. See `tfm.tasks.image_generation.task`."""

from tfm.tasks.image_generation.config import Config
from tfm.tasks.image_generation.task import ImageGeneration, create, plan

__all__ = ["Config", "ImageGeneration", "create", "plan"]
