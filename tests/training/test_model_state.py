"""Tests of a classifier with batch statistics: training, evaluation, averages, export and warm start."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from tests.support.batch_norm_net import Config
from tests.support.comparison import assert_trees_equal
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


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns a run that was trained for 4 steps, with a checkpoint after each 2 steps."""
    run = make_tiny_run(MAKE_CONFIG, tmp_path_factory.mktemp("state") / "folder")
    save(run.config, runs.config_path(str(run.workdir)))
    train(run.task, run.config.training, str(run.workdir))
    return run


@pytest.fixture(scope="module")
def loaded(trained):
    """Returns the last checkpoint of the run."""
    return runs.load(str(trained.workdir), checkpoint="last")


@pytest.fixture(scope="module")
def initial_statistics(trained):
    return jax.jit(trained.task.init)(jax.random.key(0))["batch_stats"]


def test_training_changes_and_saves_the_state(loaded, initial_statistics):
    assert set(loaded.variables) == {"params", "batch_stats"}
    mean = loaded.variables["batch_stats"]["BatchNorm_0"]["mean"]
    assert not np.array_equal(mean, initial_statistics["BatchNorm_0"]["mean"])


def test_evaluation_uses_the_state(trained, loaded, initial_statistics):
    batch = next(trained.task.open_data().train_batches(0))
    other = {**loaded.variables, "batch_stats": initial_statistics}
    losses = [
        trained.task.loss(each, batch, Context()).terms["loss"][0] for each in (loaded.variables, other)
    ]
    assert losses[0] != losses[1]


def test_export_contains_the_state(trained, loaded, tmp_path):
    write_bundle(loaded, str(tmp_path / "export"), workdir=str(trained.workdir))
    assert_trees_equal(runs.load(str(tmp_path / "export")).variables, loaded.variables)


def test_state_is_averaged_like_the_parameters(trained):
    workdir = str(trained.workdir)
    two = [runs.load(workdir, checkpoint=step).variables for step in (2, 4)]
    averaged = runs.load(workdir, checkpoint=4, average=2).variables
    expected = jax.tree.map(lambda a, b: (np.asarray(a, np.float64) + b) / 2, *two)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), averaged, expected)


def test_warm_start_begins_with_the_state_of_an_export(trained, loaded, tmp_path):
    write_bundle(loaded, str(tmp_path / "export"), workdir=str(trained.workdir))
    (tmp_path / "new").mkdir()
    config = dataclasses.replace(
        trained.config,
        training=dataclasses.replace(trained.config.training, steps=1, peak_learning_rate=1e-9),
    )
    task = trained.create(tmp_path / "new", config, new=True)
    start = warm_start.find_initial_variables(task, str(tmp_path / "export"))
    assert_trees_equal(states(start({})), states(loaded.variables))
    train(task, config.training, str(tmp_path / "new"), initial_variables=start)
    save(config, runs.config_path(str(tmp_path / "new")))
    assert_trees_equal(
        states(runs.load(str(tmp_path / "new"), checkpoint="0").variables), states(loaded.variables)
    )
