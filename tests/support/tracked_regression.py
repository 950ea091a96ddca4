"""The tiny regression with samples, and a tracker that records its calls, for tests of trackers."""

import functools
from typing import ClassVar

import numpy as np
from matplotlib.figure import Figure

from tests.support import tiny_regression
from tests.support.tiny_regression import Regression, make_config
from tfm.config import allow_modules
from tfm.training.task import Evaluation, Samples
from tfm.visualize.figures import save
from tfm.workdir.train import train

allow_modules([__name__])
NAME = f"{__name__}:Memory"


class SampledRegression(Regression):
    """The tiny regression. Its samples are the predictions of two points and a picture of the parameters."""

    def evaluate(self, variables, data):
        params = variables["params"]
        points = tiny_regression.make_points("validation")
        found = tiny_regression.predict(params, points["x"][:2])
        rows = [
            {"target": f"{y:.3f}", "prediction": f"{z:.3f}"} for y, z in zip(points["y"], found, strict=False)
        ]
        scores = super().evaluate(variables, data).scores
        return Evaluation(scores, Samples(rows, {"slope": functools.partial(draw, params)}))


def draw(params, path):
    figure = Figure(figsize=(2, 1))  # not square, so that width and height differ
    figure.subplots().plot(np.asarray(params["slope"]))
    save(figure, path)


def train_tracked(workdir, *trackers, **training):
    """Trains six steps in `workdir` with some trackers."""
    config = make_config(trackers=trackers, **training)
    train(SampledRegression(config), config.training, str(workdir))


class Memory:
    """A tracker that records its calls.

    Attributes:
      made: all trackers that were created.
      broken: name of a method that raises `error`, or "".
    """

    made: ClassVar[list] = []
    broken = ""
    error: BaseException = ConnectionError("no route to host")

    def __init__(self, workdir):
        self.workdir, self.calls = workdir, []
        if self.broken == "__init__":
            raise self.error
        self.made.append(self)

    def _keep(self, name, *arguments):
        if name == self.broken:
            raise self.error
        self.calls.append((name, *arguments))

    def log_config(self, step, config):
        self._keep("log_config", step, config)

    def log_scalars(self, step, scalars):
        self._keep("log_scalars", step, scalars)

    def log_samples(self, step, rows):
        self._keep("log_samples", step, rows)

    def log_picture(self, step, name, path):
        self._keep("log_picture", step, name, path)

    def close(self, outcome):
        self._keep("close", outcome)
