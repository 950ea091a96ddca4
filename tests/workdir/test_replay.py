"""Tests of the replay of a training step and of the changes that it reports."""

import contextlib
import json
import shutil

import jax
import numpy as np
import pytest

from tests.support import tiny_regression
from tests.support.comparison import assert_trees_equal
from tests.support.tiny import train_run
from tfm import tasks
from tfm.errors import UserError
from tfm.training.setup import Setup, open_checkpoints
from tfm.training.step import TrainState, make_context
from tfm.workdir import runs
from tfm.workdir.replay import describe_changes, replay_step


def open_run(workdir):
    """Returns the arguments of `replay_step`: the task of a run, its training config and its folder."""
    config = runs.open_folder(str(workdir)).config
    task = tasks.find(config.task).create(config, str(workdir), new=False)
    return task, config.training, str(workdir)


def saved_state(where, step):
    task, training, workdir = where
    with contextlib.closing(open_checkpoints(task, training, workdir)) as checkpoints:
        return TrainState.from_items(checkpoints.restore(step, Setup(task, training).state.items()))


@pytest.fixture(scope="module")
def run(regression_run):
    return open_run(regression_run)


@pytest.fixture(scope="module")
def translation(tiny_run):
    """Returns the task of a translation run and the replay of its step 6."""
    where = open_run(tiny_run)
    return where[0], replay_step(*where, 6)


@pytest.mark.long
@pytest.mark.parametrize(("step", "start"), [(3, 2), (4, 3), (6, 4)])
def test_replay_reproduces_the_step_bit_for_bit(run, step, start):
    found = replay_step(*run, step)
    assert (found.step, found.start) == (step, start)
    assert_trees_equal(found.after.items(), saved_state(run, step).items())
    assert int(found.before.step) == step - 1


@pytest.mark.long
def test_replay_returns_the_state_before_the_step(run):
    assert_trees_equal(replay_step(*run, 4).before.items(), saved_state(run, 3).items())


@pytest.mark.long
@pytest.mark.parametrize("parts", [1, 2])
def test_gradient_norms_of_a_replay_sum_to_that_of_the_step(tmp_path, parts):
    """This holds for micro-batches, too, which have different random keys."""
    settings = tiny_regression.make_config(steps=4, gradient_accumulation_steps=parts)
    train_run(settings, tmp_path / "run")
    found = replay_step(*open_run(tmp_path / "run"), 4)
    norms = [change.gradient for change in describe_changes(found)]
    assert np.hypot.reduce(norms) == pytest.approx(found.metrics["gradient_norm"], rel=1e-5)


@pytest.mark.long
def test_forward_pass_from_a_replay_has_the_loss_of_the_step(translation):
    """Therefore, `tfm.interpret` reads the activations of the step from its batch, parameters and key."""
    task, found = translation
    setup = Setup(task, task.config.training)
    context = make_context(setup.learners[0], setup.step_key, 5)
    loss = jax.jit(lambda params: task.loss({"params": params}, found.batch, context).terms["loss"])
    total, count = loss(found.before.params)
    assert float(total / count) == pytest.approx(found.metrics["loss"], rel=1e-5)
    assert found.facts == task.open_data().describe_batch(5)


@pytest.mark.long
def test_replay_with_a_changed_config_gives_a_warning(run, regression_run, tmp_path, caplog):
    workdir = shutil.copytree(regression_run, tmp_path / "run")
    task, training, _ = run
    replay_step(task, training, str(workdir), 3)
    assert "another config" not in caplog.text
    start = json.loads((workdir / "starts.jsonl").read_text())
    later = json.loads(json.dumps(start | {"step": 4}))
    start["config"]["training"]["gradient_accumulation_steps"] = 3
    (workdir / "starts.jsonl").write_text(json.dumps(start) + "\n" + json.dumps(later) + "\n")
    replay_step(task, training, str(workdir), 5)
    assert "another config" not in caplog.text
    replay_step(task, training, str(workdir), 4)
    assert "training.gradient_accumulation_steps was 3 and is now 1" in caplog.text


@pytest.mark.long
def test_changes_describe_every_parameter(translation):
    recomputed = translation[1]
    changes = {change.name: change for change in describe_changes(recomputed)}
    assert len(changes) == len(jax.tree.leaves(recomputed.before.params))
    assert all(change.update > 0 for change in changes.values())
    name = "decoder/layers_0/cross_attention/query/kernel"
    before, after = (
        tree["decoder"]["layers_0"]["cross_attention"]["query"]["kernel"]
        for tree in (recomputed.before.params, recomputed.after.params)
    )
    assert changes[name].norm == pytest.approx(np.sqrt((before**2).sum()), rel=1e-6)
    assert changes[name].update == pytest.approx(np.sqrt(((after - before) ** 2).sum()), rel=1e-6)


def test_damaged_checkpoint_is_not_the_start(run, regression_run, tmp_path):
    workdir = shutil.copytree(regression_run, tmp_path / "run")
    for path in (workdir / "checkpoints" / "3").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1])
    assert replay_step(*run[:2], str(workdir), 4).start == 2


def test_damage_is_the_reason_if_all_checkpoints_before_the_step_are_damaged(run, regression_run, tmp_path):
    workdir = shutil.copytree(regression_run, tmp_path / "run")
    for path in (workdir / "checkpoints" / "2").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match="the checkpoint of step 2 is damaged") as error:
        replay_step(*run[:2], str(workdir), 3)
    assert "training.keep" not in str(error.value)


@pytest.mark.long
def test_replay_of_a_step_that_cannot_be_recomputed_is_an_error(run, tiny_run, tmp_path):
    with pytest.raises(UserError, match=r"between 1 and training.steps 6, got 7"):
        replay_step(*run, 7)
    with pytest.raises(
        UserError, match=r"needs an intact checkpoint before it, and in .* the first is of step 2"
    ):
        replay_step(*run, 2)
    with pytest.raises(UserError, match="there is none"):
        replay_step(*run[:2], str(tmp_path), 2)
