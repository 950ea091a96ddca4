"""Tests of the generation of images: losses of both players, judge, scores, observations and errors."""

import dataclasses

import jax
import numpy as np
import pytest
import scipy.linalg

from tests.support import images
from tests.tasks import cases
from tfm.config import to_config_dict
from tfm.errors import UserError
from tfm.systems.sagan import task as image_generation
from tfm.systems.sagan.scores import frechet_distance
from tfm.systems.sagan.task import ImageGeneration
from tfm.systems.vit.model import ViTConfig
from tfm.testing.models import quick_jit
from tfm.training.config import TrainingConfig
from tfm.training.frozen import write_frozen
from tfm.training.task import Context


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="module")
def task(folder):
    config = cases.make_image_generation(cases.SAGAN, folder)
    config = dataclasses.replace(config, training=TrainingConfig(peak_learning_rate=1e-3))
    return image_generation.create(config, str(folder / "run"))


@pytest.fixture(scope="module")
def variables(task):
    return quick_jit(task.init)(jax.random.key(0))


def test_frechet_distance_equals_the_formula_with_a_matrix_square_root():
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(50, 4)), rng.normal(1, 2, size=(60, 4))
    first, second = (np.cov(x, rowvar=False) for x in (one, other))
    root = scipy.linalg.sqrtm(first @ second).real
    expected = ((one.mean(0) - other.mean(0)) ** 2).sum() + np.trace(first + second - 2 * root)
    assert frechet_distance(one, other) == pytest.approx(expected)
    assert frechet_distance(one, one) == pytest.approx(0, abs=1e-9)


@pytest.mark.long
def test_players_descend_the_hinge_losses_of_the_paper(task, variables):
    batch = next(iter(task.open_data().train_batches(0)))
    context = Context(0, jax.random.key(1))
    (fake, real), _ = quick_jit(task.compare)(variables, batch, context, batch["images"])
    terms = quick_jit(task.discriminator_loss)(variables, batch, context).terms
    expected = {"real": np.maximum(0, 1 - real).sum(), "fake": np.maximum(0, 1 + fake).sum()}
    assert {name: float(total) for name, (total, _) in terms.items()} == pytest.approx(expected, rel=1e-5)
    total, count = quick_jit(task.loss)(variables, batch, context).terms["loss"]
    assert (float(total), float(count)) == pytest.approx((float(-fake.sum()), len(fake)), rel=1e-5)


def test_each_player_trains_its_own_parameters_only(task):
    assert [update.parameters for update in task.updates()] == [("discriminator/*",), ("generator/*",)]


@pytest.mark.long
def test_images_do_not_depend_on_the_size_of_their_batch(task, variables):
    labels = np.array([0, 1, 2, 0, 1, 2, 2])
    whole = task.generate(variables, labels)
    assert whole.shape == (7, 8, 8, 2)
    assert np.abs(whole).max() <= 1
    smaller = dataclasses.replace(task.config, data=dataclasses.replace(task.config.data, batch_size=3))
    other = ImageGeneration(smaller, task.label_names, "")
    np.testing.assert_allclose(other.generate(variables, labels), whole, atol=1e-6)


@pytest.mark.long
def test_observation_shows_where_each_pixel_of_a_generated_image_looks(task, variables):
    found = task.observe(variables, "dog", 64)
    weights = found.attention["generator"].weights
    assert weights.shape == (1, 1, 4 * 4, 2 * 2)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    assert found.tracks["pixels"].picture.shape == (8, 8)
    assert sum(probability for _, probability in found.predictions[0].choices) == pytest.approx(1, rel=1e-5)
    with pytest.raises(UserError, match=r"'dgo'.*dog"):
        task.observe(variables, "dgo", 64)


def test_missing_judge_is_an_error_that_names_the_field(task, tmp_path):
    with pytest.raises(UserError, match=r"config\.judge"):
        image_generation.create(task.config, str(tmp_path))


@pytest.mark.parametrize(("field", "value"), [("image_size", 16), ("channels", 1), ("classes", 4)])
def test_judge_of_other_images_is_an_error_that_names_the_field(field, value, task, tmp_path):
    images.write_judge(tmp_path, dataclasses.replace(task.config.model, **{field: value}))
    with pytest.raises(UserError, match=rf"config\.judge.*model\.{field}.*{value}"):
        image_generation.create(task.config, str(tmp_path))


def test_judge_with_the_parameters_of_another_model_is_an_error(task, tmp_path):
    config = ViTConfig(
        image_size=8, channels=2, patch_size=2, classes=3, d_model=8, heads=2, encoder_layers=1
    )
    write_frozen(
        str(tmp_path / "judge.safetensors"), to_config_dict(config).to_dict(), {"params": {"x": np.ones(1)}}
    )
    with pytest.raises(UserError, match=r"config\.judge does not fit"):
        image_generation.create(task.config, str(tmp_path))
