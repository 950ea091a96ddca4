"""Tests of loss terms, model state and constants of a step on 8 virtual devices against one device."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.support.bare_task import BareTask, make_state, make_step
from tests.support.batch_norm_net import Config, Model
from tests.support.comparison import assert_trees_equal
from tests.support.small_losses import detection_batch, detection_loss, detection_params, whole_gradient
from tests.support.tiny import make_config, train_run, write_corpus
from tfm import tasks
from tfm.dropout import dropout
from tfm.layers.batch_norm import Rows
from tfm.losses import smoothed_cross_entropy
from tfm.training.config import TrainingConfig
from tfm.training.loss_calls import apply_model
from tfm.training.non_finite import split_step
from tfm.training.partitioning import make_partitioner
from tfm.training.setup import Setup, open_checkpoints
from tfm.training.step import Learner, TrainState, make_train_step
from tfm.training.task import LossOutput
from tfm.workdir.replay import describe_changes, replay_step

SGD = optax.sgd(0.5)


def layout_of(devices, **fields):
    fields, axes = {"parallel": "mesh"} | fields, {"teacher_table": ("model", "hidden")}
    return make_partitioner(TrainingConfig(**fields), jax.devices()[:devices], axes)


def run(layout, step, state, batches, constants=None):
    """Returns the final state on the host and the metrics of all steps."""
    compiled = layout.compile(step, state, constants)
    placed, fixed, metrics = layout.place(state), layout.place(constants), []
    for batch in batches:
        placed, found = compiled(placed, layout.place_batch(batch), fixed)
        metrics.append(jax.device_get(layout.fetch(found)))
    return jax.device_get(layout.fetch(placed)), metrics


def assert_close(tree, other, tolerance=1e-6):
    assert jax.tree.leaves(tree)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=tolerance), tree, other)


@pytest.mark.parametrize("micro_batches", [1, 2, 3])
def test_detector_has_the_gradient_of_the_whole_batch_under_every_layout(micro_batches):
    params, batch, sgd = detection_params(), detection_batch(13), optax.sgd(1.0)
    loss, gradient = whole_gradient(params, batch)
    step = make_step(detection_loss, sgd, micro_batches=micro_batches)
    layouts = [layout_of(devices) for devices in (1, 2, 4, 8)]
    layouts += [layout_of(8, parallel="pmap"), layout_of(4, mesh_fsdp=2)]
    for layout in layouts:
        state, (metrics,) = run(layout, step, jax.device_get(make_state(params, sgd)), [batch])
        assert_close(jax.tree.map(np.subtract, params, state.params), gradient)
        np.testing.assert_allclose(metrics["loss"], (loss, 1), rtol=1e-5)
        assert float(metrics["loss/box"][1]) == batch["is_box"].sum()


MODEL = Model(Config(dropout=0.0))


def images(rows, seed):
    rng = np.random.default_rng(seed)
    return {
        "images": rng.normal(size=(rows, 6, 6, 5)).astype(np.float32),
        "labels": rng.integers(0, 3, rows).astype(np.int32),
        "weights": np.ones(rows, np.float32),
    }


def classify(variables, batch, context):
    """The loss of a classifier with batch statistics of all devices and a spectral norm."""
    rows = Rows(batch["weights"], context.row_axes)
    logits, state = apply_model(MODEL, variables, batch["images"], context=context, rows=rows)
    return LossOutput(
        {"loss": smoothed_cross_entropy(logits, batch["labels"], batch["weights"], smoothing=0.0)}, {}, state
    )


def test_model_state_equals_that_of_one_device_and_ignores_padding():
    """The second batch has two rows, so that most devices have only padding."""
    variables = jax.device_get(MODEL.init(jax.random.key(0), images(1, 0)["images"], train=False))
    learners = [Learner(classify, SGD)]
    first = jax.device_get(TrainState.create(variables, learners, ema_decay=0.9))
    assert set(first.model_state) == {"batch_stats"}
    batches = [images(13, 1), images(2, 2), images(7, 3)]
    step = make_train_step(learners, jax.random.key(1), ema_decay=0.9)
    one, expected = run(layout_of(1), step, first, batches)
    for layout in (layout_of(4), layout_of(8, mesh_fsdp=4), layout_of(4, parallel="pmap")):
        state, metrics = run(layout, step, first, batches)
        for name in ("params", "average", "model_state"):
            assert_close(getattr(state, name), getattr(one, name), 2e-6)
        assert_close(metrics, expected, 1e-5)
    parted = make_train_step(learners, jax.random.key(1), micro_batches=3)
    state, metrics = run(layout_of(4), parted, first.replace(average=None), batches)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((state.params, state.model_state)))
    assert all(float(found["skipped"][0]) == 0 for found in metrics)


def learn(variables, batch, context):
    target = batch["x"] @ context.constants["params"]["teacher_table"]
    error = (batch["x"] @ variables["params"]["w"] - target) ** 2
    return LossOutput({"loss": ((error.mean(1) * batch["w"]).sum(), batch["w"].sum())})


def test_constants_are_sharded_like_parameters():
    rng = np.random.default_rng(0)
    params = {"w": np.zeros((8, 6), np.float32)}
    teacher = {"params": {"teacher_table": rng.normal(size=(8, 6)).astype(np.float32)}}
    batches = [
        {"x": rng.normal(size=(13, 8)).astype(np.float32), "w": np.ones(13, np.float32)} for _ in range(3)
    ]
    step, state = make_step(learn, SGD), jax.device_get(make_state(params, SGD))
    one, _ = run(layout_of(1), step, state, batches, teacher)
    assert np.abs(one.params["w"]).max() > 0.1
    for layout in (layout_of(8, mesh_fsdp=4), layout_of(8, mesh_fsdp=2, mesh_tensor=2)):
        shard = jax.tree.leaves(layout.place(teacher))[0].addressable_shards[0].data
        assert shard.size < 8 * 6
        assert_close(run(layout, step, state, batches, teacher)[0].params, one.params)
    assert_close(run(layout_of(4, parallel="pmap"), step, state, batches, teacher)[0].params, one.params)


def test_psum_over_row_axes_includes_all_rows():
    def loss(variables, batch, context):
        total = jax.lax.psum(batch["x"].sum(), context.row_axes)
        count = (batch["x"] != 0).sum()
        return LossOutput({"loss": (variables["params"]["w"] * total * count, count)})

    batch, state = {"x": np.arange(1.0, 14, dtype=np.float32)}, make_state({"w": jnp.float32(2)}, SGD)
    for layout in (layout_of(1), layout_of(4), layout_of(4, parallel="pmap")):
        after, _ = run(layout, make_step(loss, SGD), jax.device_get(state), [batch])
        np.testing.assert_allclose(after.params["w"], 2 - 0.5 * batch["x"].sum(), rtol=1e-6)


def test_one_device_recomputes_the_dropout_of_every_layout():
    def loss(variables, batch, context):
        x = dropout(context.rng, batch["x"], 0.5)
        weights = (batch["x"] != 0).any(1)
        return LossOutput({"loss": (((x @ variables["params"]["w"]) * weights).sum(), weights.sum())})

    batch = {"x": np.random.default_rng(0).normal(size=(13, 3)).astype(np.float32)}
    params = {"w": np.float32([1, 2, 3])}
    task = BareTask()
    task.init = lambda rng: {"params": params}
    task.loss = loss
    for micro_batches in (1, 2):
        setup = Setup(task, TrainingConfig(parallel="jit", gradient_accumulation_steps=micro_batches))
        step = make_train_step(setup.learners, setup.step_key, micro_batches=micro_batches)
        parts = split_step(setup, setup.learners[0], 1, batch)
        terms = [loss({"params": params}, rows, context).terms["loss"] for rows, context in parts]
        total = float(sum(term for term, _ in terms))
        for layout in (layout_of(1), layout_of(8, mesh_fsdp=2), layout_of(4, parallel="pmap")):
            _, (metrics,) = run(layout, step, jax.device_get(setup.initialize()), [batch])
            np.testing.assert_allclose(total, metrics["loss"][0], rtol=1e-5)


@pytest.mark.long
def test_replay_on_a_mesh_repeats_the_step(tmp_path):
    write_corpus(tmp_path)
    fields = {"steps": 2, "checkpoint_every": 1, "eval_every": 2, "gradient_accumulation_steps": 2}
    config = make_config(tmp_path, parallel="mesh", mesh_fsdp=2, **fields)
    train_run(config, tmp_path / "run")
    task = tasks.find(config.task).create(config, str(tmp_path / "run"), new=False)
    found = replay_step(task, config.training, str(tmp_path / "run"), 2)
    assert found.start == 1
    norms = [change.gradient for change in describe_changes(found)]
    assert np.hypot.reduce(norms) == pytest.approx(found.metrics["gradient_norm"], rel=1e-5)
    with contextlib.closing(open_checkpoints(task, config.training, str(tmp_path / "run"))) as store:
        saved = store.restore(2, Setup(task, config.training).state.items())
    assert_trees_equal(found.after.params, saved["params"])
