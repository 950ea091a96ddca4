"""Tests of residual networks: the published size, and training as a classifier."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tfm.devices.memory import count_elements
from tfm.systems.detr.resnet import FrozenBatchNorm, ResNet, ResNetClassifier, ResNetConfig
from tfm.tasks import image_classification as classification
from tfm.testing.models import quick_jit
from tfm.training.task import Context

CONFIG = ResNetConfig(image_size=6, channels=5, classes=3, depths=(1,), width=4, stem="small")


def test_resnet_50_has_the_published_number_of_parameters():
    model = ResNetClassifier(ResNetConfig())
    image = jnp.zeros((1, 224, 224, 3))
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), image, train=False))
    assert count_elements(shapes["params"]) == 25_557_032


@pytest.fixture(scope="module")
def task():
    """Returns the classification of images by a tiny residual network."""
    return classification.Classification(classification.Config(model=CONFIG), ["cat", "dog", "bird"], "")


@pytest.fixture(scope="module")
def batch():
    """Returns a batch of five random images, and a row of padding."""
    return {
        "images": np.random.default_rng(0).normal(size=(6, 6, 6, 5)).astype(np.float32),
        "labels": np.array([0, 1, 2, 0, 1, 0]),
        "weights": np.float32([1, 1, 1, 1, 1, 0]),
    }


OPTIMIZER = optax.adam(0.01)


@pytest.fixture(scope="module")
def step(task):
    """Returns a compiled step: (variables, moments, batch) -> (variables, moments, loss)."""

    @quick_jit
    def step(variables, moments, batch):
        def loss(params):
            output = task.loss({**variables, "params": params}, batch, Context(0, jax.random.key(0)))
            total, count = output.terms["loss"]
            return total / count, output.state

        (value, state), gradient = jax.value_and_grad(loss, has_aux=True)(variables["params"])
        changes, moments = OPTIMIZER.update(gradient, moments)
        params = optax.apply_updates(variables["params"], changes)
        return {"params": params, **state}, moments, value

    return step


def test_classifier_learns_a_batch(task, batch, step):
    variables = task.init(jax.random.key(0))
    moments = OPTIMIZER.init(variables["params"])
    for _ in range(60):
        variables, moments, loss = step(variables, moments, batch)
    assert loss < 0.05


def test_padding_changes_neither_the_loss_nor_the_variables_of_a_step(task, batch, step):
    """Images of padding must not enter the statistics of batch norm either."""
    variables = task.init(jax.random.key(0))
    moments = OPTIMIZER.init(variables["params"])
    other_padding = batch["images"] + np.float32([0, 0, 0, 0, 0, 9])[:, None, None, None]
    after = step(variables, moments, batch)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6),
        step(variables, moments, {**batch, "images": other_padding}),
        after,
    )
    assert after[2] > 1  # about log(3) before training


def test_frozen_norms_compute_what_trained_norms_compute_in_evaluation():
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)
    trained = ResNet((1, 1), 4, "small")
    variables = trained.init(jax.random.key(0), x, train=False)
    rng = np.random.default_rng(1)
    variables = jax.tree.map(lambda x: x + 0.1 * rng.uniform(size=x.shape).astype(np.float32), variables)
    frozen = ResNet((1, 1), 4, "small", norm=FrozenBatchNorm)
    shapes = jax.eval_shape(lambda: frozen.init(jax.random.key(0), x, train=False))

    def take(path, _):
        collection, *names = [key.key for key in path]
        is_affine = collection == "batch_stats" and names[-1] in ("scale", "bias")
        tree = variables["params" if is_affine else collection]
        for name in names:
            tree = tree[name]
        return tree

    moved = jax.tree_util.tree_map_with_path(take, shapes)
    expected = trained.apply(variables, x, train=False)
    np.testing.assert_allclose(frozen.apply(moved, x, train=True), expected, rtol=1e-4, atol=1e-5)


def test_frozen_norm_begins_as_the_identity_up_to_epsilon():
    x = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    output, state = quick_jit(lambda key: FrozenBatchNorm().init_with_output(key, x, train=True))(
        jax.random.key(0)
    )
    assert set(state) == {"batch_stats"}
    np.testing.assert_allclose(output, x / np.sqrt(1 + 1e-5), rtol=1e-6)
