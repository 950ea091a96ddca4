"""A system of a user's own package, model, task and config, trains, evaluates and resumes as it is."""

import json
import shutil
import sys

import jax
import numpy as np
import pytest

from tfm import config
from tfm.commands import evaluate, export, train, visualize
from tfm.errors import UserError
from tfm.training.run_log import read_metrics
from tfm.workdir import runs

pytestmark = pytest.mark.long

MODEL = '''
"""A network of one hidden layer."""
import dataclasses
import flax.linen as nn
from tfm.config import check_fields, field


@dataclasses.dataclass(frozen=True)
class Config:
    name: str = field("own_lab.model", "This module.", warm_start=False)
    hidden: int = field(16, "Units.", minimum=1, maximum=1000, warm_start=False)

    def __post_init__(self):
        check_fields(self, "model")


class Model(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.tanh(nn.Dense(self.config.hidden)(x[:, None])))[:, 0]
'''
TASK = '''
"""Regression: a model of one number fits a sine."""
import dataclasses
import hashlib
import itertools
from typing import Any
import jax.numpy as jnp
import numpy as np
from own_lab.model import Config as ModelConfig
from tfm import models
from tfm.evaluation.score import Score
from tfm.config import OnResume, field
from tfm.training.config import TrainingConfig
from tfm.training.task import Best, Context, Evaluation, LossOutput, Report, Task

SPLITS = {"train": 64, "validation": 16, "test": 9}


@dataclasses.dataclass(frozen=True)
class DataConfig:
    points: int = field(8, "Of a batch.", minimum=1, maximum=64)


@dataclasses.dataclass(frozen=True)
class Config:
    task: str = field("own_lab.task", "This module.", resume=OnResume.FIXED)
    model: Any = field(ModelConfig, "The model.", section_class=lambda it: models.find(it["name"]).Config)
    data: DataConfig = field(DataConfig, "Points.")
    training: TrainingConfig = field(TrainingConfig, "The procedure.")
    output_suffix = "values"

    def without_paths(self):
        return self


def points(split):
    x = np.linspace(-3, 3, SPLITS[split]).astype(np.float32)
    return {"x": x, "y": np.sin(x), "weight": np.ones_like(x)}


class Data:
    def __init__(self, config):
        self._config = config

    def train_batches(self, start_step):
        return map(self._batch, itertools.count(start_step))

    def identity(self):
        return {name: hashlib.sha256(points(name)["x"].tobytes()).hexdigest() for name in SPLITS}

    def describe_batch(self, step):
        return {"step": step}

    def count(self, batch):
        return int(batch["weight"].sum())

    def example(self):
        return self._batch(0)

    def describe(self, parameters):
        return [("points", str(self._config.data.points))]

    def _batch(self, step):
        rng = np.random.default_rng((self._config.training.seed, step))
        chosen = rng.choice(SPLITS["train"], self._config.data.points, replace=False)
        return {name: x[chosen] for name, x in points("train").items()}


class Regression(Task):
    best = Best("validation/error", "min")
    unit = "points"

    def __init__(self, config):
        self.config = config
        self.model = models.find(config.model.name).Model(config.model)

    def init(self, rng):
        return self.model.init(rng, jnp.zeros(1))

    def loss(self, variables, batch, context):
        error = (self.model.apply(variables, batch["x"]) - batch["y"]) ** 2 * batch["weight"]
        return LossOutput({"loss": (error.sum(), batch["weight"].sum())})

    def open_data(self):
        return Data(self.config)

    def mean_error(self, variables, split):
        total, count = self.loss(variables, points(split), Context()).terms["loss"]
        return float(total / count)

    def evaluate(self, variables, data):
        return Evaluation({"validation/error": self.mean_error(variables, "validation")})

    def report(self, variables, split):
        outputs = [f"{y:.3f}" for y in self.model.apply(variables, points(split)["x"])]
        examples = [{"value": text} for text in outputs]
        scores = [Score("error", self.mean_error(variables, split), "mean square")]
        yield Report(outputs, scores, examples, {}, 1.0, "sine")


def create(config, workdir, *, new=True):
    return Regression(config)
'''
CONFIG = '''
"""Fits a sine."""
from own_lab.task import Config
from tfm.config import to_config_dict
from tfm.training.config import TrainingConfig


def get_config():
    training = TrainingConfig(
        steps=40, warmup_steps=5, peak_learning_rate=0.03, log_every=10, eval_every=20, checkpoint_every=20
    )
    return to_config_dict(Config(training=training))
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the package own_lab and the file own_config.py, on sys.path."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_lab").mkdir()
    for name, content in (("__init__", ""), ("model", MODEL), ("task", TASK)):
        (folder / "own_lab" / f"{name}.py").write_text(content)
    (folder / "own_config.py").write_text(CONFIG)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == "own_lab"]:
        del sys.modules[name]
    config.names.allowed_modules -= {
        name for name in config.names.allowed_modules if name.startswith("own_lab")
    }


@pytest.fixture(scope="module")
def workdir(folder):
    """The work directory of a run of 40 steps."""
    train.main([f"--config={folder / 'own_config.py'}", f"--workdir={folder / 'run'}"])
    return folder / "run"


def test_an_own_system_trains(workdir):
    rows = read_metrics(str(workdir))
    errors = [row["validation/error"] for row in rows if "validation/error" in row]
    assert len(errors) == 2
    assert errors[-1] < errors[0] < 1
    assert all("train/points_per_second" in row for row in rows if "train/loss" in row)


def test_an_own_system_evaluates(workdir, capsys):
    evaluate.main([f"--workdir={workdir}", "--import=own_lab", "--samples=1"])
    printed = capsys.readouterr().out
    assert "test: 9 examples, step 40" in printed
    assert printed.count("value ") == 1
    assert len((workdir / "test.values.hypotheses").read_text().splitlines()) == 9
    (score,) = json.loads((workdir / "test.values.scores.json").read_text())["scores"]
    assert score["name"] == "error"
    assert score["value"] < 0.5


def test_an_own_system_resumes_exactly(folder, workdir):
    command = [f"--config={folder / 'own_config.py'}", f"--workdir={folder / 'broken'}"]
    train.main([*command, "--config.training.steps=20"])
    train.main(command)
    one, other = (runs.load(str(each), checkpoint="last") for each in (workdir, folder / "broken"))
    assert one.steps == other.steps == [40]
    jax.tree.map(np.testing.assert_array_equal, one.params, other.params)


def test_an_own_system_is_drawn_exported_and_warm_started(folder, workdir, capsys):
    visualize.main([f"--workdir={workdir}", "--import=own_lab"])
    assert [path.name for path in (workdir / "figures").glob("*.png")] == ["curves.png"]
    export.main([f"--workdir={workdir}", f"--output={folder / 'export'}", "--import=own_lab"])
    exported, trained = (runs.load(str(each)) for each in (folder / "export", workdir))
    jax.tree.map(np.testing.assert_array_equal, exported.params, trained.params)
    assert "A model of the task own_lab.task" in (folder / "export" / "README.md").read_text()
    options = [f"--config={folder / 'own_config.py'}", f"--workdir={folder / 'warm'}"]
    train.main([*options, f"--warm_start={folder / 'export'}", "--config.training.steps=1"])
    assert runs.load(str(folder / "warm"), checkpoint="last").steps == [1]
    shutil.rmtree(folder / "warm")


def test_an_own_system_has_a_dry_run(folder, capsys):
    train.main([f"--config={folder / 'own_config.py'}", f"--workdir={folder / 'dry'}", "--dry_run"])
    printed = capsys.readouterr().out
    assert "points              8" in printed
    assert "not measured here yet" in printed
    with pytest.raises(UserError, match=r"config\.model\.hiden does not exist; did you mean 'hidden'"):
        train.main(
            [f"--config={folder / 'own_config.py'}", f"--workdir={folder / 'x'}", "--config.model.hiden=3"]
        )
