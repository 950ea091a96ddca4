"""Tests of training processes that are killed or resume on other devices.

`python -m tests.support.kills` runs longer tests.
"""

import dataclasses
import os
import random

import numpy as np
import pytest

from tests.support import images, kills
from tests.support.tiny import train_run, write_config_file
from tests.support.tiny_regression import DataConfig, ModelConfig, make_config
from tfm.data.config import ImagesConfig
from tfm.systems.sagan import task as image_generation
from tfm.systems.sagan.model import SelfAttentionGANConfig
from tfm.training.config import TrainingConfig
from tfm.training.run_log import read_metrics

pytestmark = pytest.mark.long


def test_killed_run_equals_the_unbroken_run(tmp_path):
    settings = make_config(steps=60, **kills.SCHEDULE)
    settings = dataclasses.replace(settings, data=DataConfig(pause=0.1))
    train_run(settings, tmp_path / "unbroken")
    config, broken = write_config_file(tmp_path, settings), tmp_path / "broken"
    chance = random.Random(0)
    for aim in ("checkpoint", "evaluation"):
        while aim not in (fell := kills.kill(config, broken, aim, chance) or "the end"):
            assert fell != "the end", f"no kill fell in {aim}"
    kills.finish(config, broken)
    kills.compare(tmp_path / "unbroken", broken)


def test_killed_run_of_two_players_equals_the_unbroken_run(tmp_path):
    model = SelfAttentionGANConfig(
        image_size=8, channels=1, classes=10, noise=5, width=8, smallest_map=2, attention_map=4
    )
    settings = image_generation.Config(
        model=model,
        data=ImagesConfig(kind="digits", batch_size=8),
        training=TrainingConfig(
            steps=50, peak_learning_rate=1e-3, ema_decay=0.9, trackers=(), **kills.SCHEDULE
        ),
        validation_samples=0,
    )
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    for workdir in (unbroken, broken):
        images.write_judge(workdir, model)
    train_run(settings, unbroken)
    config, chance = write_config_file(tmp_path, settings), random.Random(0)
    for aim in ("training", "checkpoint"):
        assert kills.kill(config, broken, aim, chance), "the run ended before it was killed"
    kills.finish(config, broken)
    kills.compare(unbroken, broken)


def test_run_resumes_on_another_number_of_devices(tmp_path, monkeypatch):
    """The batches are the same, so the losses agree to float tolerance.

    The model has no noise, because each device draws its own noise.
    """
    settings = dataclasses.replace(make_config(log_every=1), model=ModelConfig(noise=0.0))
    train_run(settings, tmp_path / "one")
    first = dataclasses.replace(settings, training=dataclasses.replace(settings.training, steps=2))
    train_run(first, tmp_path / "two")
    monkeypatch.setenv(
        "XLA_FLAGS", f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    )
    kills.finish(write_config_file(tmp_path, settings), tmp_path / "two")
    losses = [
        [row["train/loss"] for row in read_metrics(str(tmp_path / name)) if "train/loss" in row]
        for name in ("one", "two")
    ]
    assert len(losses[0]) == settings.training.steps
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert losses[0] != losses[1]  # the second run had two devices
