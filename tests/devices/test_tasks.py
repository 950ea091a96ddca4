"""Tests of the losses, metrics and gradients of all tasks on three virtual devices against one device."""

import jax
import numpy as np
import optax
import pytest

from tests.tasks.cases import TASKS
from tfm.testing.tasks import make_tiny_run
from tfm.training.config import TrainingConfig
from tfm.training.partitioning import make_partitioner
from tfm.training.step import Learner, TrainState, make_train_step

DEVICES = 3


def update(case, variables, batch, devices):
    """Returns (gradient, metrics) of a batch without dropout on `devices` devices."""

    def loss(variables, batch, context):
        return case.task.loss(variables, batch, context.replace(rng=None))

    training = TrainingConfig(parallel="pmap" if devices > 1 else "jit")
    partitioner = make_partitioner(training, jax.devices()[:devices])
    assert partitioner.devices == devices
    learners = [Learner(loss, optax.sgd(1.0))]
    state = jax.device_get(TrainState.create(variables, learners))
    constants = case.task.constants()
    step = partitioner.compile(make_train_step(learners, jax.random.key(0)), state, constants)
    state, metrics = step(
        partitioner.place(state), partitioner.place_batch(batch), partitioner.place(constants)
    )
    new = jax.device_get(partitioner.fetch(state).params)
    gradient = jax.tree.map(lambda old, new: np.asarray(old) - new, variables["params"], new)
    return gradient, jax.device_get(partitioner.fetch(metrics))


def ragged_batch(case):
    """Returns the first training batch, cut to a number of rows that is not divisible by 3."""
    batch = next(iter(case.task.open_data().train_batches(0)))
    rows = len(next(iter(batch.values())))
    rows -= rows % DEVICES == 0
    return {name: x[:rows] for name, x in batch.items()}


DRAWS_NOISE = ("image_generation", "word_vectors")  # each device draws other noise for its rows
CASES = [(task, model) for task, cases in TASKS.items() if task not in DRAWS_NOISE for model in cases]


@pytest.mark.parametrize(("task", "model"), CASES)
def test_update_on_three_devices_equals_the_update_on_one(task, model, tmp_path):
    case = make_tiny_run(TASKS[task][model], tmp_path / "case")
    variables, batch = jax.device_get(case.random_variables()), ragged_batch(case)
    (one, expected), (three, found) = (update(case, variables, batch, devices) for devices in (1, DEVICES))
    assert expected["loss"][1] > 0
    assert float(expected["skipped"][0]) == 0
    assert max(np.abs(x).max() for x in jax.tree.leaves(one)) > 1e-4
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), three, one)
