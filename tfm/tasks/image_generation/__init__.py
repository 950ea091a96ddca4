"""Adversarial generation of labelled images."""

from tfm.tasks.image_generation.task import Config, create, plan

__all__ = ["Config", "create", "plan"]
