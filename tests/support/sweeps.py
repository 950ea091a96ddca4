"""Planned runs of a sweep over the base model of the paper."""

from tfm.sweep.plan import PlannedRun
from tfm.sweep.variants import Variant
from tfm.tasks.translation.task import Config
from tfm.training.config import TrainingConfig

BASE = Config(training=TrainingConfig(steps=100_000))


def planned(variant="base", seed=0, config=BASE):
    """Returns a planned run of a variant."""
    overrides = {"model.d_model": config.model.d_model}
    folder = f"sweep/{variant}/seed_{seed}"
    return PlannedRun(Variant(variant, overrides), seed, config, folder, [f"--config.training.seed={seed}"])
