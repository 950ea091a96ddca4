"""The Vision Transformer: against NumPy, its parameter counts, its initialization, parts from outside."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.references import numpy_vit
from tests.support.initialize import random_parameters
from tests.support.programs import FAST
from tfm.errors import UserError
from tfm.layers import Dropout
from tfm.models.vit import VisionTransformer, ViTConfig, split_patches

TINY = ViTConfig(
    image_size=6,
    channels=2,
    patch_size=3,
    classes=5,
    encoder_layers=2,
    d_model=8,
    d_ff=12,
    heads=2,
    dropout=0.1,
)
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(3, 6, 6, 2)).astype(np.float32)
SIZES = {
    "B/16": ({}, 86_567_656),
    "S/16": ({"d_model": 384, "d_ff": 1536, "heads": 6}, 22_050_664),
    "Ti/16": ({"d_model": 192, "d_ff": 768, "heads": 3}, 5_717_416),
}


@functools.cache
def randomized(model):
    """Parameters without zeros: also biases, class token and head are random."""
    return random_parameters(model, IMAGES, deviation=0.3)


@functools.partial(jax.jit, static_argnames=("model", "train"), compiler_options=FAST)
def logits(params, model, images=IMAGES, train=False, seed=0):
    rngs = {"dropout": jax.random.key(seed)}
    return model.apply({"params": params}, images, train=train, rngs=rngs)


@pytest.mark.long
@pytest.mark.parametrize("epsilon", [1e-6, 0.3])
def test_forward_pass_against_numpy(epsilon):
    model = VisionTransformer(dataclasses.replace(TINY, layer_norm_epsilon=epsilon))
    params = randomized(model)
    expected = numpy_vit.logits(params, IMAGES, patch_size=3, epsilon=epsilon)
    np.testing.assert_allclose(logits(params, model), expected, atol=2e-5)


@pytest.mark.long
@pytest.mark.parametrize("size", SIZES)
def test_parameter_counts_are_the_papers(size):
    fields, expected = SIZES[size]
    model = VisionTransformer(ViTConfig(**fields))
    image = jnp.zeros((1, 224, 224, 3))
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), image, train=False))
    assert sum(x.size for x in jax.tree.leaves(shapes)) == expected
    assert model.memory_estimate.count_parameters() == expected


def test_the_estimate_counts_every_parameter():
    model = VisionTransformer(TINY)
    assert sum(x.size for x in jax.tree.leaves(randomized(model))) == model.memory_estimate.count_parameters()
    assert sum(model.memory_estimate.layers().values()) == TINY.encoder_layers
    assert all(name.startswith("model.") for name in model.memory_estimate.sizes())


def test_patches_are_rows_of_the_image():
    patches = np.asarray(split_patches(jnp.asarray(IMAGES), 3))
    assert patches.shape == (3, 4, 18)
    for number, (row, column) in enumerate(((0, 0), (0, 3), (3, 0), (3, 3))):
        expected = IMAGES[:, row : row + 3, column : column + 3].reshape(3, 18)
        np.testing.assert_array_equal(patches[:, number], expected)
    with pytest.raises(ValueError, match="patches of 4 pixels do not divide images of 6 x 6"):
        split_patches(jnp.asarray(IMAGES), 4)


@pytest.mark.long
def test_all_classes_are_equal_at_first():
    model = VisionTransformer(dataclasses.replace(TINY, encoder_layers=1, d_model=64, image_size=60))
    image = jnp.zeros((1, 60, 60, 2))
    init = jax.jit(lambda key: model.init(key, image, train=False)["params"], compiler_options=FAST)
    params = init(jax.random.key(0))
    for zero in (params["head"]["kernel"], params["head"]["bias"], params["class_token"]):
        assert not np.asarray(zero).any()
    table = np.asarray(params["positions"]["table"])
    assert table.shape == (401, 64)
    assert 0.0195 < table.std() < 0.0205
    kernel = np.asarray(params["embedding"]["kernel"])
    assert 0.9 < kernel.std() * np.sqrt(len(kernel)) < 1.1


def test_only_positions_tell_the_order_of_patches():
    model = VisionTransformer(TINY)
    params = randomized(model)
    swapped = np.concatenate([IMAGES[:, 3:], IMAGES[:, :3]], axis=1)
    assert np.abs(logits(params, model, swapped) - logits(params, model)).max() > 1e-3
    table = params["positions"]["table"]
    same = params | {"positions": {"table": np.broadcast_to(table[:1], table.shape)}}
    np.testing.assert_allclose(logits(same, model, swapped), logits(same, model), atol=1e-5)


@pytest.mark.long
def test_dropout_in_training_only():
    model = VisionTransformer(TINY)
    params = randomized(model)
    one, two = (logits(params, model, train=True, seed=seed) for seed in (0, 1))
    assert not np.allclose(one, two)
    still = VisionTransformer(dataclasses.replace(TINY, dropout=0.0))
    np.testing.assert_allclose(logits(params, still, train=True), logits(params, model), atol=1e-5)


@pytest.mark.long
def test_remat_and_scan_change_no_results():
    plain = VisionTransformer(TINY)
    model = VisionTransformer(dataclasses.replace(TINY, remat=True, scan=True))
    params = randomized(plain)

    def loss(params, model):
        return (model.apply({"params": params}, IMAGES, train=False) ** 2).sum()

    gradient = jax.jit(jax.grad(loss), static_argnums=1, compiler_options=FAST)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
        gradient(params, model),
        gradient(params, plain),
    )


def test_bfloat16_is_near_float32():
    model = VisionTransformer(dataclasses.replace(TINY, dtype="bfloat16"))
    params = randomized(VisionTransformer(TINY))
    found = logits(params, model)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(found), logits(params, VisionTransformer(TINY)), atol=0.2)


def test_dropout_of_every_kind(monkeypatch):
    """Of the embedding sum, of each hidden layer and of each sublayer's output; every call counted."""
    rates, plain = [], Dropout.__call__
    monkeypatch.setattr(
        Dropout, "__call__", lambda self, x, *, train: rates.append(self.rate) or plain(self, x, train=train)
    )
    model = VisionTransformer(TINY)
    jax.eval_shape(functools.partial(model.init, train=False), jax.random.key(0), IMAGES)
    assert rates == [0.1] * (1 + 3 * TINY.encoder_layers)


class Averaged(VisionTransformer):
    """A user's own: RMSNorm, and the mean of all positions in the place of attention."""

    def make_norm(self, name=None):
        return nn.RMSNorm(name=name)

    def make_mixer(self):
        return Mean()


class Mean(nn.Module):
    def __call__(self, x, memory, **_):
        return jnp.broadcast_to(memory.mean(1, keepdims=True), x.shape)


def test_parts_are_replaced_by_overriding():
    model = Averaged(TINY)
    params = randomized(model)
    layer = params["encoder"]["layers_0"]
    assert set(layer) == {"mixer_residual", "feed_forward", "feed_forward_residual"}
    assert set(layer["mixer_residual"]["norm"]) == set(params["encoder"]["norm"]) == {"scale"}
    assert logits(params, model).shape == (3, 5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"patch_size": 5}, r"model\.patch_size must divide model\.image_size 224, got 5"),
        ({"heads": 5}, r"model\.d_model 768 does not divide into 5 heads"),
        ({"classes": 1}, r"model\.classes must be from 2"),
        ({"dropout": 1.0}, r"model\.dropout must be from 0"),
        ({"attention": "xla", "attention_dropout": 0.1}, r"model\.attention 'xla' "),
        ({"activation": "sine"}, r"model\.activation must be one of"),
    ],
)
def test_impossible_configs_are_errors(fields, message):
    with pytest.raises(UserError, match=message):
        ViTConfig(**fields)


def test_images_of_another_shape_are_errors():
    model = VisionTransformer(TINY)
    with pytest.raises(ValueError, match=r"expected images of shape \(6, 6, 2\), got \(6, 6, 1\)"):
        model.apply({"params": randomized(model)}, IMAGES[..., :1], train=False)
