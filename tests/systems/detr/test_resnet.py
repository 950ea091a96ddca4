"""Tests of residual networks: the published size, and training as a classifier."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tests.support import images
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


def test_classifier_learns_a_batch_and_ignores_padding(tmp_path):
    images.write_arrays(tmp_path / "images.npz", {"train": 13, "validation": 7})
    names = ["cat", "dog", "bird"]
    task = classification.Classification(classification.Config(model=CONFIG), names, "")
    variables = task.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    batch = {
        "images": rng.normal(size=(6, 6, 6, 5)).astype(np.float32),
        "labels": np.array([0, 1, 2, 0, 1, 0]),
        "weights": np.float32([1, 1, 1, 1, 1, 0]),
    }
    optimizer = optax.adam(0.01)

    @quick_jit
    def step(variables, moments, batch):
        def loss(params):
            output = task.loss({**variables, "params": params}, batch, Context(0, jax.random.key(0)))
            total, count = output.terms["loss"]
            return total / count, output.state

        (value, state), gradient = jax.value_and_grad(loss, has_aux=True)(variables["params"])
        changes, moments = optimizer.update(gradient, moments)
        params = optax.apply_updates(variables["params"], changes)
        return {"params": params, **state}, moments, value

    moments = optimizer.init(variables["params"])
    other = {**batch, "images": batch["images"] + np.float32([0, 0, 0, 0, 0, 9])[:, None, None, None]}
    np.testing.assert_allclose(step(variables, moments, batch)[2], step(variables, moments, other)[2])
    for _ in range(60):
        variables, moments, value = step(variables, moments, batch)
    assert value < 0.05


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
