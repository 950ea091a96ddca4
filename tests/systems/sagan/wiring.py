"""Observers of the config sections of SAGAN."""

import dataclasses
import pathlib

from tests.support import images
from tests.wiring.case import Case, Observation
from tests.wiring.observers import observe_task
from tfm.data.config import ImagesConfig
from tfm.systems.sagan import task as image_generation
from tfm.systems.sagan.model import SelfAttentionGANConfig
from tfm.training.config import TrainingConfig

MODEL = SelfAttentionGANConfig(
    image_size=8, channels=1, classes=10, noise=5, width=8, smallest_map=1, attention_map=4
)
CONFIG = image_generation.Config(
    model=MODEL,
    data=ImagesConfig(kind="digits", batch_size=3),
    training=TrainingConfig(peak_learning_rate=1e-3),
    validation_samples=1,
)


def observe_generation(config: image_generation.Config) -> Observation:
    """Observes the task. Its judge has random parameters if the config names no other judge."""

    def write_models(workdir: str) -> None:
        if not config.judge:
            images.write_judge(pathlib.Path(workdir), config.model)

    return observe_task(config, write_models)


def observe_model(model: SelfAttentionGANConfig) -> Observation:
    """Observes the task with this model."""
    return observe_generation(dataclasses.replace(CONFIG, model=model))


CASES = [Case(MODEL, observe_model), Case(CONFIG, observe_generation)]
VALUES = {image_generation.Config: {"judge": "elsewhere"}}
