"""Tests of whole T-DMCA models against NumPy, of their gradients and of their caches."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.cases import COMPRESSED
from tests.references.numeric_gradients import assert_gradient_close
from tests.systems.t_dmca.numpy_t_dmca import t_dmca
from tfm import attention
from tfm.layers import residual
from tfm.losses import smoothed_cross_entropy
from tfm.systems.t_dmca.compressed_layer import CompressedLayer, find_ends
from tfm.systems.t_dmca.local_layer import LocalLayer
from tfm.systems.t_dmca.model import TDMCAConfig
from tfm.testing.models import VOCABULARY, quick_jit
from tfm.testing.parameters import random_parameters

LENGTH = 11
SEGMENTS = np.array([[1] * 11, [1] * 3 + [2] * 7 + [0]])
POSITIONS = np.array([[*range(11)], [*range(3), *range(7), 0]])
RNG = np.random.default_rng(2)
TOKENS = RNG.integers(3, VOCABULARY, (2, LENGTH)) * (SEGMENTS > 0)
TARGETS = RNG.integers(3, VOCABULARY, (2, LENGTH))
CASES = ["local and compressed", "compressed", "local"]


def texts():
    """Yields the row and the places of each text."""
    for row, segments in enumerate(SEGMENTS):
        for text in range(1, segments.max() + 1):
            yield row, np.flatnonzero(segments == text)


def compute_loss(model, params):
    """Returns the sum of the cross-entropies of the targets of all texts in float64."""
    total = 0.0
    for row, places in texts():
        logits = t_dmca(model.config, params, TOKENS[row, places])
        log_z = np.log(np.exp(logits).sum(-1))
        total += (log_z - logits[np.arange(len(places)), TARGETS[row, places]]).sum()
    return total


@pytest.mark.parametrize(
    "name", [CASES[0], *(pytest.param(name, marks=pytest.mark.long) for name in CASES[1:])]
)
def test_logits_and_gradient_of_packed_texts_equal_numpy_text_by_text(name):
    model = COMPRESSED[name]
    params = random_parameters(model, TOKENS)

    @quick_jit
    def run(params):
        def loss(params):
            call = {"positions": POSITIONS, "segments": SEGMENTS, "train": False}
            logits = model.apply({"params": params}, TOKENS, **call)
            return smoothed_cross_entropy(logits, TARGETS, SEGMENTS > 0, smoothing=0.0)[0], logits

        return jax.grad(loss, has_aux=True)(params)

    gradient, logits = run(params)
    for row, places in texts():
        expected = t_dmca(model.config, params, TOKENS[row, places])
        np.testing.assert_allclose(logits[row, places], expected, atol=5e-5)
    compute = functools.partial(compute_loss, model)
    assert_gradient_close(gradient, compute, params, rtol=2e-3, atol=2e-4)


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_a_prefix_in_pieces_and_reordered_hypotheses_equal_numpy(name):
    """The second row has a shorter prefix, so that its padding lies between the pieces."""
    model = COMPRESSED[name]
    params = random_parameters(model, TOKENS)
    tokens = RNG.integers(3, VOCABULARY, (2, 12))
    lengths, steps, parents = (6, 4), 5, np.array([1, 0])
    is_token = np.arange(6) < np.array(lengths)[:, None]
    prefix = np.where(is_token, tokens[:, :6], 0)
    continuation = RNG.integers(3, VOCABULARY, (steps, 2, 2))  # [T, B, W]

    @quick_jit
    def run(params):
        apply = functools.partial(model.apply, {"params": params})
        cache = apply(prefix, width=2, max_length=steps, method="init_cache")
        outputs = []
        for step in range(steps):
            position = jnp.asarray(step)
            logits, cache = apply(jnp.asarray(continuation[step]), cache, position, method="decode_step")
            outputs.append(logits)
            cache = cache.reorder(jnp.broadcast_to(parents, (2, 2)))
        return jnp.stack(outputs)

    found = run(params)
    for row in range(2):
        read = [tokens[row, : lengths[row]].tolist()] * 2
        for step in range(steps):
            read = [[*text, continuation[step, row, i]] for i, text in enumerate(read)]
            for i, text in enumerate(read):
                expected = t_dmca(model.config, params, np.array(text))[-1]
                np.testing.assert_allclose(found[step, row, i], expected, atol=1e-4)
            read = [read[parent] for parent in parents]


def test_every_dropout_is_on_in_training_with_the_rate_of_its_field(monkeypatch):
    """The rates are those of the embeddings and of six sublayers, of the attentions and of the networks."""
    rates = []

    def record(rng, x, rate):
        rates.append(rate)
        return x

    for module in (residual, attention):
        monkeypatch.setattr(module, "dropout", record)
    fields = {"dropout": 0.3, "attention_dropout": 0.2, "feed_forward_dropout": 0.4}
    model = COMPRESSED["local and compressed"]
    model = model.clone(config=dataclasses.replace(model.config, **fields))
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    jax.eval_shape(functools.partial(model.init, train=True), keys, TOKENS)
    assert {rate: rates.count(rate) for rate in rates} == {0.3: 1 + 2 * 3, 0.2: 3, 0.4: 3}


def test_defaults_are_those_of_the_paper():
    fields = {"d_model": 512, "d_ff": 2048, "heads": 8, "activation": "relu"}
    fields |= {"positions": "interleaved", "scale_embedding": True}
    config = TDMCAConfig()
    assert {name: getattr(config, name) for name in fields} == fields
    assert (CompressedLayer.stride, LocalLayer.block) == (config.compression, config.local_block) == (3, 256)


def test_a_window_that_began_before_the_row_has_no_end():
    """The second position of the first row ends a window whose first position is missing."""
    segments = np.array([[1, 1, 1, 1, 1, 2, 2], [1, 2, 2, 2, 2, 2, 0]])
    positions = np.array([[1, 2, 3, 4, 5, 0, 1], [0, 5, 6, 7, 8, 9, 0]])
    ends, is_end = find_ends(segments, positions, 3)
    assert [row[is_whole].tolist() for row, is_whole in zip(ends, is_end, strict=True)] == [[4], [4]]
    ends, is_end = find_ends(segments, positions, 3, is_begun=True)
    assert [row[is_whole].tolist() for row, is_whole in zip(ends, is_end, strict=True)] == [[1, 4], [1, 4]]
