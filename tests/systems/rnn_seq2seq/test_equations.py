"""Tests of recurrent translation models against the equations of their papers in NumPy float64."""

import functools

import jax
import numpy as np
import pytest

from tests.models.cases import RNNS
from tests.systems.rnn_seq2seq import numpy_rnn
from tfm.layers.observe import read_attention
from tfm.testing.models import VOCABULARY, quick_jit
from tfm.testing.parameters import random_parameters

SOURCES, TARGETS = np.random.default_rng(0).integers(3, VOCABULARY, (2, 3, 7))
SOURCES[1, 4:] = 0
TARGETS = TARGETS[:, :6]


@quick_jit(static_argnums=0)
def apply_and_attend(model, params, *arguments):
    """Returns (logits, {kind: attention weights})."""
    apply = functools.partial(model.apply, {"params": params}, *arguments, train=False)
    points = model.attention_points.items()
    return apply(), {kind: read_attention(point, apply)[1] for kind, point in points}


@pytest.mark.long
@pytest.mark.parametrize("name", RNNS)
def test_recurrent_models_equal_numpy_sentence_by_sentence(name):
    model = RNNS[name]
    params = random_parameters(model, SOURCES, TARGETS, deviation=0.7)
    found, attention = apply_and_attend(model, params, SOURCES, TARGETS)
    wide = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        source = source[source > 0]
        expected, weights = numpy_rnn.rnn(model.config, wide, source, target)
        np.testing.assert_allclose(found[row], expected, atol=2e-4)
        if weights is not None:
            weights_to_source = attention["cross"][0, row, 0, :, : len(source)]
            np.testing.assert_allclose(weights_to_source, weights, atol=1e-5)
