"""A task that compiles quickly, a line through points, for tests of training.

It draws noise from the random key of the loss, so that a wrong key changes its numbers.
"""

import dataclasses
import hashlib
import itertools
import time
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tfm import models
from tfm.config import OnResume, allow_modules, field
from tfm.evaluation.score import Score
from tfm.training.config import TrainingConfig
from tfm.training.task import Best, Context, Evaluation, LossOutput, Report, Task

allow_modules([__name__])

SIZES = {"train": 40, "validation": 16, "test": 12}
ROWS = 6  # of a batch, which 4 and 8 devices do not divide
FEATURES = 4


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    name: str = field(
        "tests.support.tiny_regression:line", "The model.", resume=OnResume.FIXED, warm_start=False
    )
    noise: float = field(0.1, "Standard deviation of the noise on inputs in training.", minimum=0, maximum=1)
    d_model: int = field(FEATURES, "Features of a point.", minimum=1, maximum=100, warm_start=False)


def predict(params, x):
    """Returns predictions [B] of points [B, D]."""
    return x @ params["slope"] + params["offset"]


line = types.SimpleNamespace(Config=ModelConfig, Model=predict)


@dataclasses.dataclass(frozen=True)
class DataConfig:
    points: int = field(ROWS, "Points of a batch.", minimum=1, maximum=1000)
    pause: float = field(
        0.0, "Duration of each evaluation in seconds.", minimum=0, maximum=1, resume=OnResume.FREE
    )


@dataclasses.dataclass(frozen=True)
class Config:
    task: str = field("tests.support.tiny_regression", "This module.", resume=OnResume.FIXED)
    model: Any = models.model_field(ModelConfig)
    data: DataConfig = field(DataConfig, "Points.")
    training: TrainingConfig = field(TrainingConfig, "The procedure.")
    output_suffix = "values"

    def without_paths(self):
        return self


def make_points(split):
    """Returns the points of a split, {"x": [N, D], "y": [N], "weight": [N]}."""
    rng = np.random.default_rng(list(SIZES).index(split))
    x = rng.normal(size=(SIZES[split], FEATURES)).astype(np.float32)
    return {"x": x, "y": x @ np.float32([1, -2, 3, 0.5]) + 1, "weight": np.ones(len(x), np.float32)}


class Data:
    def __init__(self, config):
        self._config, self._points = config, make_points("train")

    def train_batches(self, start_step):
        return map(self._batch, itertools.count(start_step))

    def identity(self):
        return {name: hashlib.sha256(make_points(name)["x"].tobytes()).hexdigest() for name in SIZES}

    def describe_batch(self, step):
        return {"batch": step, "points": self._choose(step).tolist()}

    def count(self, batch):
        return int(batch["weight"].sum())

    def example(self):
        return self._batch(0)

    def describe(self, parameters):
        return [("points", str(self._config.data.points))]

    def _choose(self, step):
        rng = np.random.default_rng((self._config.training.seed, step))
        return rng.choice(SIZES["train"], self._config.data.points, replace=False)

    def _batch(self, step):
        chosen = self._choose(step)
        batch = {name: x[chosen] for name, x in self._points.items()}
        return batch | {"serial": np.full(len(chosen), step + 1, np.int32)}


class Regression(Task):
    best = Best("validation/score")
    unit = "points"

    def __init__(self, config):
        self.config = config
        self.d_model = config.model.d_model

    def init(self, rng):
        return {"params": {"slope": jax.random.normal(rng, (self.d_model,)), "offset": jnp.zeros(())}}

    def loss(self, variables, batch, context):
        x = batch["x"]
        if context.train:
            x = x + self.config.model.noise * jax.random.normal(context.rng, x.shape)
        error = (predict(variables["params"], x) - batch["y"]) ** 2 * batch["weight"]
        count = batch["weight"].sum()
        return LossOutput({"loss": (error.sum(), count)}, {"points": (count, count)})

    def mean_error(self, variables, split):
        """Returns the mean square error of a split."""
        ((total, count),) = self.loss(variables, make_points(split), Context()).terms.values()
        return float(total / count)

    def open_data(self):
        return Data(self.config)

    def evaluate(self, variables, data):
        time.sleep(self.config.data.pause)
        error = self.mean_error(variables, "validation")
        return Evaluation({"validation/error": error, "validation/score": -error})

    def report(self, variables, split):
        outputs = [str(y) for y in make_points(split)["y"]]
        score = Score("error", self.mean_error(variables, split), "mean square")
        yield Report(outputs, [score], [{"value": text} for text in outputs], {}, 1.0, "line")


def create(config, workdir, *, new=True):
    return Regression(config)


def make_config(**training):
    """Returns the config of six steps with several checkpoints and evaluations."""
    defaults = {"steps": 6, "warmup_steps": 3, "log_every": 4, "eval_every": 3, "checkpoint_every": 2}
    return Config(training=TrainingConfig(**defaults | {"keep": 9} | training))
