"""A generator that learns eight Gaussians on a circle from a discriminator (docs/add_a_system.md).

`python -m tests.support.eight_gaussians FOLDER` trains a short run in a folder.
"""

import dataclasses
import itertools
import sys
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tfm.config import OnResume, field
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import Adam
from tfm.training.task import Best, Evaluation, LossOutput, Task, Update
from tfm.workdir.train import train

ANGLES = np.arange(8) * np.pi / 4
MODES = 2 * np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)
DEVIATION, NOISE, ROWS = 0.1, 8, 128


@dataclasses.dataclass(frozen=True)
class Config:
    """A run of the two players."""

    task: str = field("tests.support.eight_gaussians", "This module.", resume=OnResume.FIXED)
    training: TrainingConfig = field(TrainingConfig, "The procedure.")
    output_suffix = "points"

    def without_paths(self):
        """Returns the config, which has no paths."""
        return self


class Points:
    """Random points of the eight Gaussians."""

    def __init__(self, seed):
        self._seed = seed

    def train_batches(self, start_step):
        return map(self._batch, itertools.count(start_step))

    def identity(self):
        return {"train": "eight Gaussians", "validation": "eight Gaussians"}

    def describe_batch(self, step):
        return {"batch": step}

    def count(self, batch):
        return int(batch["weights"].sum())

    def example(self):
        return self._batch(0)

    def describe(self, parameters):
        return [("points", str(ROWS))]

    def _batch(self, step):
        rng = np.random.default_rng((self._seed, step))
        points = MODES[rng.integers(8, size=ROWS)] + DEVIATION * rng.normal(size=(ROWS, 2))
        return {"points": points.astype(np.float32), "weights": np.ones(ROWS, np.float32)}


class Network(nn.Module):
    """A network of three hidden layers."""

    outputs: int

    @nn.compact
    def __call__(self, x):
        for _ in range(3):
            x = nn.leaky_relu(nn.Dense(64)(x))
        return nn.Dense(self.outputs)(x)


class EightGaussians(Task):
    """A generator and a discriminator, trained in turn in each step."""

    best = Best("validation/near")
    unit = "points"
    networks: ClassVar = {"generator": Network(2), "discriminator": Network(1)}

    def __init__(self, config):
        self.config = config

    def init(self, rng):
        inputs = {"generator": jnp.zeros((1, NOISE)), "discriminator": jnp.zeros((1, 2))}
        keys = dict(zip(inputs, jax.random.split(rng), strict=True))
        return {
            "params": {name: self.networks[name].init(keys[name], x)["params"] for name, x in inputs.items()}
        }

    def updates(self):
        adam = Adam(b1=0.5, b2=0.9)
        return (
            Update("discriminator", self.discriminator_loss, ("discriminator/*",), adam),
            Update("generator", self.loss, ("generator/*",), adam),
        )

    def discriminator_loss(self, variables, batch, context):
        """Computes the logistic loss plus a penalty on the slope at real points (Mescheder et al. 2018)."""
        params, weights = variables["params"], batch["weights"]
        made = self.generate(params, context.row_rng, len(weights))
        slopes = jax.vmap(jax.grad(lambda point: self.judge(params, point[None])[0]))(batch["points"])
        losses = nn.softplus(-self.judge(params, batch["points"])) + nn.softplus(self.judge(params, made))
        losses += 0.1 * (slopes**2).sum(1)
        return LossOutput({"loss": ((losses * weights).sum(), weights.sum())})

    def loss(self, variables, batch, context):
        """Computes the loss of the generator."""
        params, weights = variables["params"], batch["weights"]
        losses = nn.softplus(-self.judge(params, self.generate(params, context.row_rng, len(weights))))
        return LossOutput({"loss": ((losses * weights).sum(), weights.sum())})

    def generate(self, params, rng, rows):
        noise = jax.random.normal(rng, (rows, NOISE))
        return self.networks["generator"].apply({"params": params["generator"]}, noise)

    def judge(self, params, points):
        return self.networks["discriminator"].apply({"params": params["discriminator"]}, points)[:, 0]

    def open_data(self):
        return Points(self.config.training.seed)

    def evaluate(self, variables, data):
        points = np.asarray(self.generate(variables["params"], jax.random.key(0), 2000))
        distances = np.linalg.norm(points[:, None] - MODES, axis=-1)
        is_near = distances.min(1) < 3 * DEVIATION
        modes = len(set(distances[is_near].argmin(1)))
        return Evaluation({"validation/near": float(is_near.mean()), "validation/modes": float(modes)})

    def report(self, variables, split):
        yield from ()


def make_config(**training: Any) -> Config:
    """Returns the config of a run."""
    defaults = {"schedule": "constant", "warmup_steps": 1, "peak_learning_rate": 2e-3, "ema_decay": 0.99}
    return Config(training=TrainingConfig(**defaults | {"trackers": ()} | training))


def train_short(workdir: str) -> None:
    """Trains a short run that saves often."""
    config = make_config(steps=60, log_every=5, eval_every=30, checkpoint_every=7, keep=3)
    train(EightGaussians(config), config.training, workdir)


if __name__ == "__main__":
    train_short(sys.argv[1])
