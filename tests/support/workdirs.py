"""Functions that write work directories with a config and rows of metrics."""

import json

from tests.support.tiny_regression import Config
from tfm.config import save
from tfm.training.config import TrainingConfig
from tfm.workdir import runs


def make_workdir(folder, **fields):
    """Writes the work directory of a run that has not begun and returns its path."""
    folder.mkdir()
    training = TrainingConfig(steps=100, warmup_steps=2, peak_learning_rate=0.1, **fields)
    save(Config(training=training), runs.config_path(str(folder)))
    return folder


def write_metrics(workdir, *rows):
    """Writes the rows of metrics.jsonl."""
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def logged(step, time):
    """Returns a row of a training step."""
    return {"step": step, "time": time, "train/loss": 1.0 / step, "train/points_per_second": 3.0}


def validated(step, score):
    """Returns a row of an evaluation."""
    return {"step": step, "time": 0.0, "validation/score": score}
