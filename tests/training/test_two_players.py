"""Tests of adversarial training in the ordinary loop: two players on eight Gaussians."""

import contextlib
import os
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

from tests.support import processes
from tests.support.comparison import assert_trees_equal
from tests.support.eight_gaussians import EightGaussians, make_config, train_short
from tests.support.paths import ROOT
from tfm.testing.tasks import rows_without_times
from tfm.training.dry_run import describe_run
from tfm.training.non_finite import explain
from tfm.training.run_log import METRICS_FILE, read_metrics
from tfm.training.setup import Setup, open_checkpoints
from tfm.training.step import TrainState
from tfm.workdir.replay import describe_changes, replay_step
from tfm.workdir.train import train

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("players") / "run"
    folder.mkdir()
    train_short(str(folder))
    return folder


def test_two_players_find_all_modes(tmp_path):
    config = make_config(steps=3000, log_every=1000, eval_every=3000, checkpoint_every=3000)
    train(EightGaussians(config), config.training, str(tmp_path))
    (scores,) = [row for row in read_metrics(str(tmp_path)) if "validation/modes" in row]
    assert scores["validation/modes"] == 8
    assert scores["validation/near"] >= 0.85


def test_both_players_resume_exactly_after_a_kill(short_run, tmp_path):
    command = [sys.executable, "-m", "tests.support.eight_gaussians", str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"JAX_PLATFORMS": "cpu"})
    metrics = tmp_path / METRICS_FILE
    has_rows = lambda: metrics.exists() and len(metrics.read_text().splitlines()) >= 5  # noqa: E731
    processes.wait_until(has_rows, "rows of metrics", process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    train_short(str(tmp_path))
    assert rows_without_times(tmp_path) == rows_without_times(short_run)


def test_metrics_have_the_names_of_the_players(short_run):
    last = [row for row in read_metrics(str(short_run)) if "train/loss" in row][-1]
    losses = [last[f"train/{player}/loss"] for player in ("discriminator", "generator")]
    assert last["train/loss"] == pytest.approx(sum(losses), rel=1e-5)
    assert last["train/generator/learning_rate"] == pytest.approx(2e-3)
    assert last["train/discriminator/gradient_norm"] > 0


def test_all_fields_of_training_work_with_two_players_and_resume_and_replay_exactly(tmp_path):
    """The fields are freezing, clipping, the average, micro-batches and factors by pattern."""
    fields = {
        "eval_every": 2,
        "log_every": 2,
        "checkpoint_every": 2,
        "keep": 9,
        "ema_decay": 0.9,
        "clip_norm": 0.1,
        "gradient_accumulation_steps": 2,
        "freeze": ("generator/Dense_0/*",),
        "learning_rate_factors": ("generator/*=0.5",),
    }
    task = EightGaussians(make_config(steps=4, **fields))
    config = task.config.training
    lines = describe_run(task, config, str(tmp_path))
    assert any(f"{Setup(task, config).parameters:,}" in line for line in lines)
    for name, pieces in (("whole", (4,)), ("pieces", (2, 4))):
        (tmp_path / name).mkdir()
        for steps in pieces:
            part = make_config(steps=steps, **fields)
            train(EightGaussians(part), part.training, str(tmp_path / name))
    assert rows_without_times(tmp_path / "whole") == rows_without_times(tmp_path / "pieces")
    found = replay_step(task, config, str(tmp_path / "whole"), 4)
    with contextlib.closing(open_checkpoints(task, config, str(tmp_path / "pieces"))) as checkpoints:
        saved = TrainState.from_items(checkpoints.restore(4, Setup(task, config).state.items()))
    for name in ("params", "average", "opt_state"):
        assert_trees_equal(getattr(found.after, name), getattr(saved, name))
    log = [row for row in read_metrics(str(tmp_path / "whole")) if "train/loss" in row][-1]
    assert log["train/generator/learning_rate"] == 0.5 * log["train/discriminator/learning_rate"] > 0
    norms = [change.gradient for change in describe_changes(found) if "generator" in change.name]
    assert np.hypot.reduce(norms) == pytest.approx(found.metrics["generator/gradient_norm"], rel=1e-5)
    frozen, trained = (
        [
            tree["generator"][layer]["kernel"]
            for tree in (found.before.params, saved.params, saved.average["params"])
        ]
        for layer in ("Dense_0", "Dense_1")
    )
    assert all((x == frozen[0]).all() for x in frozen)
    assert len({x.tobytes() for x in map(np.asarray, trained)}) == 3
    assert found.metrics["discriminator/gradient_norm"] > 0.1  # so that the clipping has an effect


def test_error_names_the_update_that_is_not_finite(tmp_path):
    """The discriminator is updated first and reads the huge samples of the generator."""
    task = EightGaussians(make_config(steps=9, peak_learning_rate=1000.0))
    setup, data = Setup(task, task.config.training), task.open_data()
    state = setup.initialize()
    huge = jax.tree.map(lambda x: x * 1e30, state.params["generator"])
    state = state.replace(params=state.params | {"generator": huge})
    text = str(explain(setup, data, str(tmp_path), state, 1, data.example()))
    assert "update 'discriminator'" in text
