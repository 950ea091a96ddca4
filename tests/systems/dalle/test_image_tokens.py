"""Tests of the training of image codes: loss, noise, schedules and scores, against NumPy float64."""

import dataclasses
import itertools
import tracemalloc

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from tests.systems.dalle import numpy_dvae
from tests.tasks import cases
from tfm.data.batches.generated import EVALUATION
from tfm.errors import UserError
from tfm.systems.dalle import image_tokens
from tfm.systems.dalle.captions import CaptionedDigits, CaptionsConfig
from tfm.systems.dalle.dvae import DVAEConfig, Reconstruction
from tfm.testing.models import quick_jit
from tfm.testing.parameters import random_parameters
from tfm.training.task import Context

SIZES = {"groups": cases.DVAE.groups, "blocks": cases.DVAE.blocks}
ROWS = 40


class Recorder(nn.Module):
    """A model whose outputs are its inputs."""

    def __call__(self, images, noise, temperature, *, train):
        return Reconstruction(noise, images, jnp.full(images.shape, temperature))


@pytest.fixture(scope="module")
def task():
    return image_tokens.create(cases.make_image_tokens(cases.DVAE, None), "")


@pytest.fixture(scope="module")
def variables(task):
    image = np.zeros((1, 16, 16, 3), np.float32)
    return {"params": random_parameters(task.model, image)}


@pytest.fixture(scope="module")
def batch():
    captions = CaptionedDigits("test")
    return captions.assemble([captions.make(number) for number in range(2)], 3)


@pytest.fixture(scope="module")
def loss(task, variables, batch):
    """Returns the compiled loss of a step."""
    return quick_jit(lambda step: task.loss(variables, batch, Context(step)))


def expected_terms(images, logits, mean, log_scale):
    """Returns the sums of the negative log density of pixels, and of the divergence from uniform codes."""
    shares = 0.5 + 0.4 * np.asarray(images, np.float64)
    density = scipy.stats.laplace.pdf(np.log(shares / (1 - shares)), mean, np.exp(log_scale))
    reconstruction = -np.log(density / (shares * (1 - shares))).sum()
    codes = logits.shape[-1]
    uniform = np.full(codes, 1 / codes)
    divergence = scipy.stats.entropy(numpy_dvae.softmax(logits), uniform, axis=-1).sum()
    return reconstruction, divergence


@pytest.mark.parametrize(("step", "beta"), [(0, 0.0), (1, 3.3), (2, 6.6), (9, 6.6)])
def test_loss_is_the_bound_of_the_paper_for_each_number_of_an_image(loss, variables, batch, step, beta):
    output = loss(step)
    images = batch["images"][:2]  # the last row is padding
    params = variables["params"]
    logits = numpy_dvae.encode(params["encoder"], images, **SIZES)
    outputs = numpy_dvae.decode(params["decoder"], np.eye(7)[logits.argmax(-1)], **SIZES)
    reconstruction, divergence = expected_terms(images, logits, *outputs)
    numbers = 2 * 16 * 16 * 3
    assert output.terms["reconstruction"] == pytest.approx((reconstruction, numbers), rel=1e-4)
    assert output.terms["divergence"] == pytest.approx((beta * divergence, numbers), rel=1e-4, abs=1e-6)
    assert output.metrics["nats_per_code"] == pytest.approx((divergence, 2 * 4 * 4), rel=1e-4)


@pytest.mark.parametrize(
    ("step", "temperature"), [(0, 1), (1, 0.8627136), (2, 0.53125), (4, 1 / 16), (9, 1 / 16)]
)
def test_temperature_falls_with_a_cosine_to_a_sixteenth(task, step, temperature):
    assert float(task.temperature(step)) == pytest.approx(temperature, rel=1e-5)


def record(pixel_noise, key=0):
    """Returns images, what a model reads in training, and the terms and metrics of its loss."""
    config = cases.make_image_tokens(dataclasses.replace(cases.DVAE, codes=50), None)
    task = image_tokens.create(dataclasses.replace(config, pixel_noise=pixel_noise), "")
    images = np.random.default_rng(0).uniform(-0.5, 0.5, (ROWS, 16, 16, 3)).astype(np.float32)
    batch = {"images": images, "weights": np.ones(ROWS, np.float32)}
    seen = []

    class Model(Recorder):
        def __call__(self, *inputs, train):
            seen.extend(inputs)
            return super().__call__(*inputs, train=train)

    task.model = Model()

    @quick_jit
    def run(key):
        seen.clear()
        output = task.loss({"params": {}}, batch, Context(2, key))
        return list(seen), output.terms, output.metrics

    return (images, *jax.tree.map(np.asarray, run(jax.random.key(key))))


@pytest.fixture(scope="module")
def recorded():
    return record(0.25)


def test_noise_of_codes_has_the_gumbel_distribution(recorded):
    noise = recorded[1][1]
    assert noise.shape == (ROWS, 4, 4, 50)
    assert scipy.stats.kstest(noise.ravel(), "gumbel_r").statistic < 0.01
    assert len(np.unique(noise)) > 0.9 * noise.size


def test_noise_of_pixels_is_uniform_and_as_wide_as_the_config_says(recorded):
    noise = (recorded[1][0] - recorded[0]).ravel()
    assert scipy.stats.kstest(noise, scipy.stats.uniform(-0.125, 0.25).cdf).statistic < 0.01
    assert len(np.unique(recorded[1][0])) > 0.9 * noise.size


def test_pixels_have_no_noise_by_default():
    assert image_tokens.Config().pixel_noise == 0
    images, (seen, *_), _, _ = record(0.0)
    np.testing.assert_array_equal(seen, images)


def test_model_reads_the_temperature_of_the_step(recorded):
    assert recorded[1][2] == pytest.approx(0.53125)
    assert recorded[3]["temperature"] == pytest.approx((0.53125 * ROWS, ROWS))


def test_likelihood_is_that_of_the_pixels_with_noise(recorded):
    _, (seen, noise, temperature), terms, _ = recorded
    expected, _ = expected_terms(seen, noise, seen, np.full(seen.shape, temperature))
    assert terms["reconstruction"][0] == pytest.approx(expected, rel=1e-4)


def test_noise_of_codes_and_of_pixels_follows_the_key(recorded):
    other = record(0.25, key=1)
    for one, two in zip(recorded[1][:2], other[1][:2], strict=True):
        assert (one == two).mean() < 0.01


def test_defaults_are_those_of_the_paper():
    config = image_tokens.Config()
    assert (config.final_temperature, config.temperature_steps) == (1 / 16, 150_000)
    assert (config.divergence_weight, config.divergence_steps) == (6.6, 5000)


@pytest.fixture(scope="module")
def restored(variables):
    """Returns the pictures of the validation split, the restored pictures, and their codes [N, H, W]."""
    pictures = CaptionedDigits("validation")
    images = np.stack([pictures.make(EVALUATION, index).image for index in range(5)])
    codes = numpy_dvae.encode(variables["params"]["encoder"], images, **SIZES).argmax(-1)
    return images, numpy_dvae.draw(variables["params"], codes, **SIZES), codes


def test_validation_scores_are_the_squared_error_of_a_number_and_the_number_of_used_codes(
    task, variables, restored
):
    images, expected, codes = restored
    scores = task.evaluate(variables, task.open_data()).scores
    assert scores == {
        "validation/squared_error": pytest.approx(np.mean((images - expected) ** 2), rel=1e-4),
        "validation/used_codes": len(set(codes.ravel())),
    }


def test_report_has_the_scores_of_an_evaluation_and_the_codes_of_each_picture(task, variables, restored):
    images, expected, codes = restored
    (report,) = task.report(variables, "validation")
    assert [score.value for score in report.scores] == [
        pytest.approx(np.mean((images - expected) ** 2), rel=1e-4),
        len(set(codes.ravel())),
    ]
    assert report.outputs == [" ".join(map(str, itertools.chain(*grid))) for grid in codes]


def test_samples_are_pictures_and_below_them_what_their_codes_restore(task, variables, restored):
    samples = task.evaluate(variables, task.open_data()).samples
    shown, titles = samples.pictures["restored"].args
    np.testing.assert_allclose(shown, np.concatenate(restored[:2]), atol=1e-5)
    assert titles == ["image"] * 5 + ["restored"] * 5
    assert samples.pictures["restored"].keywords["columns"] == 5


@pytest.mark.parametrize("samples", [0, 3, 5, 9])
def test_samples_are_the_first_pictures_of_a_split_of_several_batches(task, variables, restored, samples):
    result = task.reconstruct(variables, CaptionedDigits("validation"), samples)
    images, expected, codes = restored
    np.testing.assert_array_equal(result.images, images[:samples])
    np.testing.assert_allclose(result.restored, expected[:samples], atol=1e-5)
    np.testing.assert_array_equal(result.codes, codes)


def test_memory_of_an_evaluation_does_not_grow_with_the_pictures(task, variables):
    data = dataclasses.replace(task.config.data, evaluated=400)
    larger = image_tokens.create(dataclasses.replace(task.config, data=data), "")
    pictures = CaptionedDigits("validation")
    larger.reconstruct(variables, pictures, 0)  # compiles
    tracemalloc.start()
    larger.reconstruct(variables, pictures, 0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 400 * pictures.make(EVALUATION, 0).image.nbytes / 2


def test_published_autoencoder_does_not_read_these_pictures():
    with pytest.raises(UserError, match=r"image_size to be 16.*got 256"):
        image_tokens.check_pictures(DVAEConfig(), CaptionsConfig())
