"""Functions that write work directories with a config, starts and rows of metrics, as training does."""

import json

from tests.support.tiny_regression import Config, Data
from tfm.config import save
from tfm.training.config import TrainingConfig
from tfm.training.scores import VALIDATION, Scores
from tfm.training.task import Best
from tfm.workdir import runs
from tfm.workdir.starts import RECORD_FILE, last_start, record_start


def make_workdir(folder, **fields):
    """Writes the work directory of a run that has not begun and returns its path."""
    folder.mkdir()
    training = TrainingConfig(steps=100, warmup_steps=2, peak_learning_rate=0.1, **fields)
    save(Config(training=training), runs.config_path(str(folder)))
    return folder


def write_start(workdir, config=None, data=None, step=0, **fields):
    """Appends the line of a start to starts.jsonl, as training does.

    Args:
      workdir: folder of the run.
      config: config of the start. None means the config in the folder.
      data: {name: fingerprint} of the data. None means the data of `tiny_regression`.
      step: step that the run resumes from.
      fields: fields of the line that have other values.
    """
    folder = str(workdir)
    config = config or runs.open_folder(folder).config
    record_start(folder, config, Data(config).identity() if data is None else data, step)
    if fields:
        *before, _ = (workdir / RECORD_FILE).read_text().splitlines(keepends=True)
        line = json.dumps(last_start(folder) | fields) + "\n"
        (workdir / RECORD_FILE).write_text("".join([*before, line]))


def write_metrics(workdir, *rows):
    """Writes the rows of metrics.jsonl, and the scores of the evaluations among them."""
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    scores = Scores(str(workdir), Best(""))
    for row in rows:
        if evaluation := {name: value for name, value in row.items() if name.startswith(VALIDATION)}:
            scores.add(row["step"], evaluation)


def logged(step, time):
    """Returns a row of a training step."""
    metrics = {
        "gradient_norm": 2.0,
        "loss": 1.0 / step,
        "points": 1.0,
        "skipped": 0.0,
        "learning_rate": 0.1,
        "points_per_second": 3.0,
        "parameter_norm": 4.0,
    }
    return {"step": step, "time": time} | {f"train/{name}": value for name, value in metrics.items()}


def validated(step, score):
    """Returns a row of an evaluation."""
    return {"step": step, "time": 0.0, "validation/error": -score, "validation/score": score}
