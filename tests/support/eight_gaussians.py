"""A generator that learns eight Gaussians on a circle from a discriminator (docs/add_a_system.md).

`python -m tests.support.eight_gaussians FOLDER` trains a short run in a folder.
"""

import dataclasses
import itertools
import sys
from collections.abc import Iterator
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tfm.config import OnResume, field
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import Adam
from tfm.training.task import (
    Batch,
    Best,
    Context,
    Evaluation,
    LossOutput,
    Report,
    Task,
    Update,
    Variables,
)
from tfm.workdir.train import train

ANGLES = np.arange(8) * np.pi / 4
MODES = 2 * np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)  # the centers [8, 2]
DEVIATION = 0.1  # standard deviation of each Gaussian
NOISE = 8  # features of the generator's input, N
ROWS = 128  # points of a batch, B


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
    """Random points of the eight Gaussians. Implements `tfm.training.task.Data`.

    A batch has "points" float32 [B, 2] and "weights" float32 [B].
    """

    def __init__(self, seed: int):
        self._seed = seed

    def train_batches(self, start_step: int) -> Iterator[Batch]:
        """Yields the batches from a step on."""
        return map(self._batch, itertools.count(start_step))

    def identity(self) -> dict[str, str]:
        """Returns a text for each split that identifies its points."""
        return {"train": "eight Gaussians", "validation": "eight Gaussians"}

    def describe_batch(self, step: int) -> dict[str, int]:
        """Returns the number of the batch of a step."""
        return {"batch": step}

    def count(self, batch: Batch) -> int:
        """Returns the number of points of a batch."""
        return int(batch["weights"].sum())

    def example(self) -> Batch:
        """Returns a batch, for the shapes of the training step."""
        return self._batch(0)

    def describe(self, parameters: int) -> list[tuple[str, str]]:
        """Returns the (name, text) line about the points of a batch."""
        return [("points", str(ROWS))]

    def _batch(self, step: int) -> Batch:
        rng = np.random.default_rng((self._seed, step))
        points = MODES[rng.integers(8, size=ROWS)] + DEVIATION * rng.normal(size=(ROWS, 2))
        return {"points": points.astype(np.float32), "weights": np.ones(ROWS, np.float32)}


class Network(nn.Module):
    """A network of three hidden layers.

    Attributes:
      outputs: number of features of the output, F.
    """

    outputs: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [B, D] to [B, F]."""
        for _ in range(3):
            x = nn.leaky_relu(nn.Dense(64)(x))
        return nn.Dense(self.outputs)(x)


class EightGaussians(Task):
    """A generator [B, N] -> [B, 2] and a discriminator [B, 2] -> [B, 1], trained in turn in each step.

    For the methods, see `tfm.training.task.Task`.
    """

    best = Best("validation/near")
    unit = "points"
    networks: ClassVar = {"generator": Network(2), "discriminator": Network(1)}

    def __init__(self, config: Config):
        self.config = config

    def init(self, rng: jax.Array) -> Variables:
        """Returns the parameters of both networks, {"params": {"generator": tree, "discriminator": tree}}."""
        inputs = {"generator": jnp.zeros((1, NOISE)), "discriminator": jnp.zeros((1, 2))}
        keys = dict(zip(inputs, jax.random.split(rng), strict=True))
        return {
            "params": {name: self.networks[name].init(keys[name], x)["params"] for name, x in inputs.items()}
        }

    def updates(self) -> tuple[Update, Update]:
        """Returns the update of the discriminator and the update of the generator, which follows it."""
        adam = Adam(b1=0.5, b2=0.9)
        return (
            Update("discriminator", self.discriminator_loss, ("discriminator/*",), adam),
            Update("generator", self.loss, ("generator/*",), adam),
        )

    def discriminator_loss(self, variables: Variables, batch: Batch, context: Context) -> LossOutput:
        """Computes the logistic loss plus a penalty on the slope at real points (Mescheder et al. 2018)."""
        params, weights = variables["params"], batch["weights"]
        made = self.generate(params, context.row_rng, len(weights))
        slopes = jax.vmap(jax.grad(lambda point: self.judge(params, point[None])[0]))(batch["points"])
        losses = nn.softplus(-self.judge(params, batch["points"])) + nn.softplus(self.judge(params, made))
        losses += 0.1 * (slopes**2).sum(1)
        return LossOutput({"loss": ((losses * weights).sum(), weights.sum())})

    def loss(self, variables: Variables, batch: Batch, context: Context) -> LossOutput:
        """Computes the loss of the generator."""
        params, weights = variables["params"], batch["weights"]
        losses = nn.softplus(-self.judge(params, self.generate(params, context.row_rng, len(weights))))
        return LossOutput({"loss": ((losses * weights).sum(), weights.sum())})

    def generate(self, params: Any, rng: jax.Array, rows: int) -> jax.Array:
        """Returns random points of the generator, float32 [rows, 2]."""
        noise = jax.random.normal(rng, (rows, NOISE))
        return self.networks["generator"].apply({"params": params["generator"]}, noise)

    def judge(self, params: Any, points: jax.Array) -> jax.Array:
        """Returns the logits [B] of the discriminator, large for points [B, 2] that look real."""
        return self.networks["discriminator"].apply({"params": params["discriminator"]}, points)[:, 0]

    def open_data(self) -> Points:
        """Returns the training points."""
        return Points(self.config.training.seed)

    def evaluate(self, variables: Variables, data: Any) -> Evaluation:
        """Returns the share of generated points near a mode, and the number of modes with such points."""
        points = np.asarray(self.generate(variables["params"], jax.random.key(0), 2000))
        distances = np.linalg.norm(points[:, None] - MODES, axis=-1)
        is_near = distances.min(1) < 3 * DEVIATION
        modes = len(set(distances[is_near].argmin(1)))
        return Evaluation({"validation/near": float(is_near.mean()), "validation/modes": float(modes)})

    def report(self, variables: Variables, split: str) -> Iterator[Report]:
        """Yields nothing, because the points have no outputs to show."""
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
