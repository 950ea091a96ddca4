"""Tests of a classifier with batch statistics: training, evaluation, averages, export and warm start."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from tests.support.batch_norm_net import Config
from tests.tasks.cases import make_classification
from tfm.config import save
from tfm.export.write import write_bundle
from tfm.testing.tasks import TaskContract, make_tiny_run
from tfm.training.task import Context
from tfm.workdir import runs, warm_start
from tfm.workdir.train import train

pytestmark = pytest.mark.long
MAKE_CONFIG = functools.partial(make_classification, Config())


class TestModelWithState(TaskContract):
    """Tests that the task fulfils the contract of tasks. A resumed run has the state of an unbroken run."""

    cases, test_examples = {"batch_norm": MAKE_CONFIG}, 5


def states(variables):
    return {name: tree for name, tree in variables.items() if name != "params"}


def assert_equal(tree, other):
    assert jax.tree.leaves(tree)
    jax.tree.map(np.testing.assert_array_equal, tree, other)


def test_state_is_saved_evaluated_exported_averaged_and_used_in_a_warm_start(tmp_path):
    run = make_tiny_run(MAKE_CONFIG, tmp_path / "run")
    workdir = str(run.workdir)
    save(run.config, runs.config_path(workdir))
    train(run.task, run.config.training, workdir)
    found, first = runs.load(workdir, checkpoint="last"), jax.jit(run.task.init)(jax.random.key(0))
    assert set(found.variables) == {"params", "batch_stats"}
    mean = found.variables["batch_stats"]["BatchNorm_0"]["mean"]
    assert not np.array_equal(mean, first["batch_stats"]["BatchNorm_0"]["mean"])
    # Evaluation uses the statistics.
    batch = next(run.task.open_data().train_batches(0))
    other = {**found.variables, "batch_stats": first["batch_stats"]}
    losses = [run.task.loss(each, batch, Context()).terms["loss"][0] for each in (found.variables, other)]
    assert losses[0] != losses[1]
    write_bundle(found, str(tmp_path / "export"), workdir=workdir)
    assert_equal(runs.load(str(tmp_path / "export")).variables, found.variables)
    two = [runs.load(workdir, checkpoint=step).variables for step in (2, 4)]
    averaged = runs.load(workdir, checkpoint=4, average=2).variables
    expected = jax.tree.map(lambda a, b: (np.asarray(a, np.float64) + b) / 2, *two)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), averaged, expected)
    # A warm start begins with the state of the exported run.
    config = dataclasses.replace(
        run.config, training=dataclasses.replace(run.config.training, steps=1, peak_learning_rate=1e-9)
    )
    (tmp_path / "new").mkdir()
    task = run.create(tmp_path / "new", config, new=True)
    start = warm_start.find_initial_variables(task, str(tmp_path / "export"))
    assert_equal(states(start({})), states(found.variables))
    train(task, config.training, str(tmp_path / "new"), initial_variables=start)
    save(config, runs.config_path(str(tmp_path / "new")))
    assert_equal(states(runs.load(str(tmp_path / "new"), checkpoint="0").variables), states(found.variables))
