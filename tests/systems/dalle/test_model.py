"""Tests of DALL-E: published sizes, the likelihood of pixels, and the masks of the language model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate

from tfm.devices.memory import count_elements
from tfm.masks import causal_mask
from tfm.systems.dalle.dvae import DiscreteVAE, DVAEConfig, logit_laplace_nll, to_interval
from tfm.systems.dalle.model import DALLE, KINDS, MASKED, DALLEConfig, mask_kind, restrict_to_image_part

TINY = {"layers": 2, "d_model": 8, "d_ff": 8, "heads": 2, "dropout": 0.0, "attention_dropout": 0.0}
CONFIG = DALLEConfig(text_vocabulary=6, codes=5, text_length=2, side=4, kernel=3, **TINY)


def test_autoencoder_has_the_published_number_of_parameters():
    model = DiscreteVAE(DVAEConfig())
    init = lambda key: model.init(key, jnp.zeros((1, 32, 32, 3)), train=False)  # noqa: E731
    shapes = jax.eval_shape(init, jax.random.key(0))["params"]
    counts = {name: count_elements(tree) for name, tree in shapes.items()}
    assert counts == {"encoder": 53_786_240, "decoder": 43_829_766}


def test_language_model_has_the_published_number_of_parameters():
    config = DALLEConfig()
    model = DALLE(config, config.vocabulary)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, 1), int), train=False))
    assert count_elements(shapes) == 12_291_796_608


def test_density_of_pixels_integrates_to_1():
    def density(x, mean, log_scale):
        pixel = (x - 0.5) / 0.4  # so that `to_interval` returns x
        return float(np.exp(-logit_laplace_nll(*map(jnp.float32, (pixel, mean, log_scale)))))

    assert float(to_interval(jnp.float32(1))) == pytest.approx(0.9)
    for mean, log_scale in ((0.0, 0.0), (1.0, -1.0)):
        points = np.linspace(0.001, 0.999, 2001)
        values = [density(x, mean, log_scale) for x in points]
        assert scipy.integrate.trapezoid(values, points) == pytest.approx(1, abs=0.01)


def is_visible(query, key, kind):
    """Returns whether the code at place `query` sees the code at place `key`."""
    (row, column), (other_row, other_column) = divmod(query, 4), divmod(key, 4)
    if key > query:
        return False
    if kind == "row":
        return query - key <= 4
    if kind == "column":
        return column == other_column
    return abs(row - other_row) <= 1 and abs(column - other_column) <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_masks_show_the_text_and_a_part_of_the_image(kind):
    positions = jnp.arange(CONFIG.max_length)
    mask = restrict_to_image_part(
        causal_mask(positions, positions), positions, positions, config=CONFIG, kind=kind
    )
    expected = [
        [key <= query if key <= 2 else is_visible(query - 3, key - 3, kind) for key in range(19)]
        for query in range(19)
    ]
    np.testing.assert_array_equal(np.asarray(mask)[0], expected)


def test_last_layer_is_convolutional_and_every_fourth_is_for_columns():
    kinds = [mask_kind(index, 64) for index in range(64)]
    assert kinds[:7] == ["row", "column", "row", "row", "row", "column", "row"]
    assert kinds[-1] == "convolution"
    assert [kinds.count(kind) for kind in KINDS] == [47, 16, 1]


def test_texts_continue_with_words_images_with_codes_and_then_comes_eos():
    model = DALLE(CONFIG, CONFIG.vocabulary)
    tokens = np.zeros((1, CONFIG.max_length), int)
    variables = model.init(jax.random.key(0), tokens, train=False)
    is_possible = np.asarray(model.apply(variables, tokens, train=False))[0] > MASKED
    words, codes = np.arange(11) < 6, np.arange(11) >= 6
    np.testing.assert_array_equal(is_possible[:2], [words] * 2)
    np.testing.assert_array_equal(is_possible[2:18], [codes] * 16)
    np.testing.assert_array_equal(is_possible[18], np.arange(11) == 2)
