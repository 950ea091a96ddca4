"""Tests of the generation of images: losses of both players, judge, scores, observations and errors."""

import dataclasses

import flax.linen as nn
import jax
import numpy as np
import pytest
import scipy.linalg
import scipy.stats

from tests.support import images
from tests.tasks import cases
from tfm.config import to_config_dict
from tfm.errors import UserError
from tfm.systems.sagan import task as image_generation
from tfm.systems.sagan.scores import compute_scores, frechet_distance
from tfm.systems.sagan.task import ImageGeneration, observe_image
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


@pytest.mark.parametrize("features", [np.ones((1, 4)), np.full((3, 4), np.nan)])
def test_distance_of_one_picture_and_of_a_diverged_model_is_no_number(features):
    references = np.arange(20.0).reshape(5, 4)
    assert np.isnan(frechet_distance(features, references))
    assert np.isnan(frechet_distance(references, features))


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


class Recorder(nn.Module):
    """A model whose logits and images are its inputs."""

    def __call__(self, noise, labels, images=None, rows=None, *, train):
        real = None if images is None else images[:, 0, 0, 0]
        return noise[:, 0], real

    def generate(self, noise, labels, *, train):
        """Returns the noise and the label of each image as pixels."""
        return jax.numpy.concatenate([noise, labels[:, None]], axis=1)[:, :, None, None]


FAKE, REAL = np.float32([-0.5, -3, 2, 9, -0.25]), np.float32([0.25, 3, -2, 9, 1.5])
WEIGHTS = np.float32([1, 1, 1, 0, 1])


@pytest.fixture(scope="module")
def recorder(task):
    """Returns a task whose logits are given by the batch."""
    recorder = ImageGeneration(task.config, task.label_names, "")
    recorder.model = Recorder()
    return recorder


def logits_of_a_batch(monkeypatch, recorder):
    """Lets the generated images of a batch have the logits `FAKE`. Returns a batch with the logits `REAL`."""
    monkeypatch.setattr(
        recorder, "compare", lambda variables, batch, context, images=None: ((FAKE, REAL), {"state": 1})
    )
    return {"images": None, "labels": np.zeros(5, int), "weights": WEIGHTS}


def test_losses_are_hinges_for_the_discriminator_and_the_negative_logit_for_the_generator(
    monkeypatch, recorder
):
    batch = logits_of_a_batch(monkeypatch, recorder)
    output = recorder.discriminator_loss({}, batch, Context())
    assert output.terms == {"real": (0.75 + 0 + 3 + 0, 4), "fake": (0.5 + 0 + 3 + 0.75, 4)}
    assert output.metrics == {"real_accuracy": (3, 4), "fake_accuracy": (3, 4)}
    output = recorder.loss({}, batch, Context())
    assert output.terms == {"loss": (0.5 + 3 - 2 + 0.25, 4)}
    assert output.state == {"state": 1}


def test_noise_in_training_is_normal_and_follows_the_key(recorder):
    batch = {"labels": np.zeros(4000, int), "weights": np.ones(4000, np.float32)}

    @quick_jit
    def compare(key):
        return recorder.compare({"params": {}}, batch, Context(0, key))[0][0]

    one, other = (np.asarray(compare(jax.random.key(seed))) for seed in range(2))
    assert scipy.stats.kstest(one, "norm").statistic < 0.03
    assert scipy.stats.kstest(other, "norm").statistic < 0.03
    assert not (one == other).any()


def test_real_images_of_a_batch_are_judged(recorder):
    images = np.random.default_rng(0).normal(size=(4, 8, 8, 2))
    batch = {"labels": np.zeros(4, int), "weights": np.ones(4, np.float32), "images": images}
    (_, real), _ = recorder.compare({"params": {}}, batch, Context(), batch["images"])
    np.testing.assert_array_equal(real, images[:, 0, 0, 0])


def test_images_are_drawn_from_normal_noise_of_the_seed(recorder):
    labels = np.arange(900) % 3
    drawn = [recorder.generate({"params": {}}, labels, seed=seed)[:, :, 0, 0] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    for rows in drawn:
        np.testing.assert_array_equal(rows[:, -1], labels)
        assert scipy.stats.kstest(rows[:, :-1].ravel(), "norm").statistic < 0.02
    assert not (drawn[0][:, :-1] == drawn[2][:, :-1]).any()


class Judge:
    """A judge that sees the class in the first pixel, and the features in the first column."""

    fingerprint = ""

    def __init__(self):
        self.calls = []  # number of images of each call

    def judge(self, images):
        """Returns the probabilities of three classes, and features [N, height]."""
        self.calls.append(len(images))
        judged = np.rint(images[:, 0, 0, 0]).astype(int) % 3
        return np.eye(3)[judged], images[:, :, 0, 0]


def test_scores_are_the_share_of_requested_classes_and_the_distance_to_real_images():
    rng = np.random.default_rng(0)
    features, references = rng.normal(size=(40, 4)), rng.normal(1, 2, size=(40, 4))
    judged = np.arange(40) % 3
    labels = np.where(np.arange(40) < 30, judged, (judged + 1) % 3)
    assert [score.value for score in compute_scores(labels, judged, features, references)] == [
        75,
        pytest.approx(frechet_distance(features, references)),
    ]


class Painting(ImageGeneration):
    """A task that draws the requested class, except of every fourth image."""

    def generate(self, variables, labels, seed=0):
        images = np.random.default_rng(seed).normal(size=(len(labels), 8, 8, 2))
        images[:, 0, 0, 0] = np.where(np.arange(len(labels)) % 4 == 3, labels + 1, labels)
        return images


@pytest.fixture(scope="module")
def painting(task):
    config = dataclasses.replace(task.config, validation_samples=5)
    return Painting(config, task.label_names, "", judge=Judge())


def test_evaluation_compares_with_real_images_and_shows_all_classes(painting):
    evaluation = painting.evaluate(None, painting.open_data())
    source = images.read_split(painting.config.data.file, "validation")
    expected = painting.generate(None, source[1])[:, :, 0, 0]
    assert evaluation.scores == {
        "validation/accuracy": pytest.approx(6 / 7),  # one of seven images shows another class
        "validation/frechet": pytest.approx(frechet_distance(expected, source[0][:, :, 0, 0]), rel=1e-5),
    }
    names = ["cat", "dog", "bird", "cat", "dog"]
    judged = ["cat", "dog", "bird", "dog", "dog"]
    rows = [{"class": name, "judged": other} for name, other in zip(names, judged, strict=True)]
    assert evaluation.samples.rows == rows
    shown, titles = evaluation.samples.pictures["generated"].args
    assert titles == names
    np.testing.assert_array_equal(shown, painting.generate(None, np.array([0, 1, 2, 0, 1]), seed=1))


def test_evaluation_judges_one_batch_of_images_at_a_time(task):
    judge = Judge()
    config = dataclasses.replace(task.config, validation_samples=0)
    painting = Painting(config, task.label_names, "", judge=judge)
    painting.evaluate(None, painting.open_data())
    assert judge.calls == [4, 4, 4, 4]  # the generated and the real images of two batches


def test_batches_of_images_have_the_noise_of_one_long_batch(recorder):
    labels = np.arange(12) % 3
    rng = np.random.default_rng(0)
    parts = [recorder.generate({"params": {}}, part, rng) for part in np.split(labels, [4, 8])]
    np.testing.assert_array_equal(np.concatenate(parts), recorder.generate({"params": {}}, labels))


def test_report_has_the_judged_class_of_each_image(painting):
    (report,) = painting.report(None, "validation")
    assert report.outputs == ["cat", "dog", "bird", "dog", "dog", "bird", "cat"]
    assert report.scores[0].value == pytest.approx(600 / 7)


def test_observed_image_has_a_track_of_queries_and_a_track_of_keys():
    choices = [("dog", 0.7), ("cat", 0.3)]
    observation = observe_image("cat", np.zeros((8, 8, 2)), np.zeros((1, 1, 16, 4)), choices)
    assert {name: track.grid for name, track in observation.tracks.items()} == {
        "pixels": (4, 4),
        "areas": (2, 2),
    }
    attention = observation.attention["generator"]
    assert (attention.queries, attention.keys) == ("pixels", "areas")
    assert observation.title.endswith("cat")
    assert (observation.result, observation.predictions[0].probability) == ("dog", 0.7)


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
    with pytest.raises(UserError, match=r"config\.judge is of another model: params"):
        image_generation.create(task.config, str(tmp_path))
