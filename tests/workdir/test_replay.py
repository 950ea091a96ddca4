"""Tests of the replay of a training step and of the activations and changes that it reports."""

import contextlib
import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest

from tests.support import tiny_regression
from tests.support.tiny import train_run
from tfm import interpret, tasks
from tfm.errors import UserError
from tfm.tasks.translation.task import Translation, shift_right
from tfm.training.setup import Setup, open_checkpoints
from tfm.training.step import TrainState, make_context
from tfm.training.task import Update
from tfm.workdir import replay, runs
from tfm.workdir.replay import describe_changes, replay_step

READ = "decoder.*.cross_attention.weights"


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
    return where[0], replay_step(*where, 6, [READ])


@pytest.mark.long
@pytest.mark.parametrize(("step", "start"), [(3, 2), (4, 3), (6, 4)])
def test_replay_reproduces_the_step_bit_for_bit(run, step, start):
    found = replay_step(*run, step)
    assert (found.step, found.start) == (step, start)
    jax.tree.map(np.testing.assert_array_equal, found.after.items(), saved_state(run, step).items())
    assert int(found.before.step) == step - 1
    assert not found.reads


@pytest.mark.long
def test_replay_returns_the_state_before_the_step(run):
    jax.tree.map(
        np.testing.assert_array_equal, replay_step(*run, 4).before.items(), saved_state(run, 3).items()
    )


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
def test_activations_of_a_replay_are_those_of_the_step(translation):
    task, found = translation
    batch, setup = found.batch, Setup(task, task.config.training)
    _, expected = interpret.run(
        task.model,
        found.before.params,
        batch["inputs"],
        shift_right(batch["targets"], batch["target_positions"]),
        **{name: batch[name] for name in batch if name.endswith(("positions", "segments"))},
        train=True,
        rngs={"dropout": make_context(setup.learners[0], setup.step_key, 5).rng},
        method="features",
        read=READ,
    )
    assert found.reads.keys() == expected.keys() != set()
    for name, value in expected.items():
        np.testing.assert_allclose(found.reads[name], value, rtol=1e-5, atol=1e-6)
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


def test_different_loss_of_the_second_pass_is_an_error():
    replay.check_same_pass(1 + 1e-6, 1.0, "float32")
    replay.check_same_pass(1 + 1e-4, 1.0, "bfloat16")
    with pytest.raises(UserError, match=r"dropout under model\.scan draws other masks"):
        replay.check_same_pass(1 + 1e-4, 1.0, "float32")


@pytest.mark.long
def test_reading_activations_of_scanned_layers_with_dropout_is_an_error(tiny_run):
    task, training, workdir = open_run(tiny_run)
    model = task.config.model
    scanned = Translation(
        dataclasses.replace(task.config, model=dataclasses.replace(model, scan=True)), task.tokenizer
    )
    replay_step(scanned, training, workdir, 6)
    with pytest.raises(UserError, match=r"has the loss .* and the step .*: dropout under model.scan"):
        replay_step(scanned, training, workdir, 6, [READ])


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


@pytest.mark.long
def test_activations_are_those_of_an_update_that_is_due(tiny_run):
    """The first update is due in every second step only, and the step 4 of the last case has no update."""
    task, training, _ = open_run(tiny_run)
    batch = next(task.open_data().train_batches(0))
    for step, every, name in ((0, (2, 1), "a/loss"), (1, (2, 1), "b/loss"), (3, (2, 2), "")):
        updates = (
            Update("a", task.loss, ("encoder/*",), every=every[0]),
            Update("b", task.loss, ("decoder/*", "embedding/*"), every=every[1]),
        )
        two = Translation(task.config, task.tokenizer)
        two.updates = lambda updates=updates: updates
        setup = Setup(two, training)
        state = jax.device_get(setup.initialize()).replace(step=np.int32(step))
        if name:
            reads, losses = replay.read_activations(setup, state, batch, [READ])
            assert reads
            assert [*losses] == [name]
        else:
            with pytest.raises(UserError, match="Step 4 "):
                replay.read_activations(setup, state, batch, [READ])


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
    with pytest.raises(UserError, match=r"got .decoder\.nothing., which matches none"):
        replay_step(*open_run(tiny_run), 3, ["decoder.nothing"])
