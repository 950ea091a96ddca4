"""What a run logs: which steps, which learning rate, and what a resumed run compares its loss with."""

import json

import pytest

from tests.support.tiny import train_run
from tests.support.tiny_regression import FEATURES, make_config
from tfm.training.run_log import METRICS_FILE


def losses(rows):
    return {row["step"]: row["train/loss"] for row in rows if "train/loss" in row}


@pytest.mark.parametrize(("steps", "logged"), [(6, [3, 6]), (7, [3, 6, 7]), (2, [2])])
def test_every_log_every_steps_are_logged_and_so_is_the_last_step(steps, logged, tmp_path):
    rows = train_run(make_config(steps=steps, log_every=3), tmp_path)
    assert list(losses(rows)) == logged


def test_the_logged_learning_rate_is_the_rate_of_the_logged_step(tmp_path):
    """Equation 3 of the paper, with steps counted from 1."""
    rows = train_run(make_config(steps=5, warmup_steps=3, log_every=1), tmp_path)
    rates = {row["step"]: row["train/learning_rate"] for row in rows if "train/learning_rate" in row}
    expected = {step: FEATURES**-0.5 * min(step**-0.5, step * 3**-1.5) for step in range(1, 6)}
    assert rates == pytest.approx(expected, rel=1e-6)


def test_a_resumed_run_that_diverges_is_compared_with_the_first_loss_of_the_run(tmp_path, caplog):
    train_run(make_config(steps=2, log_every=1), tmp_path)
    path = tmp_path / METRICS_FILE
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    first = next(row for row in rows if "train/loss" in row)
    first["train/loss"] = 1e-9  # every later loss is above it
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    train_run(make_config(steps=5, log_every=1, diverged_after=2), tmp_path)
    assert "1e-09" in caplog.text
