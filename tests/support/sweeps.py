"""Planned runs of a sweep over the base model of the paper."""

from tfm.sweep.plan import PlannedRun
from tfm.sweep.variants import Variant
from tfm.tasks.translation.task import Config
from tfm.training.config import TrainingConfig

BASE = Config(training=TrainingConfig(steps=100_000))


def planned(variant="base", seed=0, config=BASE):
    """Returns a planned run of a variant."""
    return PlannedRun(Variant(variant, {"model.d_ff": 7}), seed, config, f"sweep/{variant}/seed_{seed}", [])
