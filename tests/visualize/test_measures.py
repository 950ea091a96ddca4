"""Tests of the numbers in plots, against examples by hand and independent references."""

import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.tiny import randomize_weights
from tfm.errors import UserError
from tfm.training.task import Context, LossOutput
from tfm.visualize import measures
from tfm.workdir import runs


def test_calibration_equals_an_example_by_hand():
    probabilities = np.array([0.05, 0.15, 0.11, 0.85, 0.95, 1.0, 0.92])
    correct = np.array([False, True, False, True, True, True, False])
    found = measures.calibrate(probabilities, correct)
    np.testing.assert_allclose(found.confidence, [0.05, 0.13, 0.85, 2.87 / 3])
    np.testing.assert_allclose(found.accuracy, [0, 0.5, 1, 2 / 3])
    assert found.count.tolist() == [1, 2, 1, 3]
    np.testing.assert_allclose(found.error, (0.05 + 2 * 0.37 + 0.15 + 3 * (2.87 / 3 - 2 / 3)) / 7)


def test_calibrated_model_has_almost_no_error():
    rng = np.random.default_rng(0)
    probabilities = rng.random(200_000)
    found = measures.calibrate(probabilities, rng.random(200_000) < probabilities)
    assert found.error < 0.01
    assert measures.calibrate(probabilities, rng.random(200_000) < probabilities**2).error > 0.1


@pytest.mark.parametrize("groups", [1, 3, 6])
def test_groups_of_lengths_are_disjoint_and_of_similar_size(groups):
    lengths = np.random.default_rng(1).integers(1, 30, 500)
    found = measures.split_by_length(lengths, groups)
    assert sorted(np.concatenate(found).tolist()) == list(range(500))
    assert len(found) == groups
    for shorter, longer in itertools.pairwise(found):
        assert lengths[shorter].max() < lengths[longer].min()
    assert min(map(len, found)) > 500 / groups / 2


def test_equal_lengths_are_one_group():
    assert [each.tolist() for each in measures.split_by_length([4] * 5, 3)] == [[0, 1, 2, 3, 4]]


def test_scores_by_length_are_computed_for_each_group():
    texts = ["a", "a b", "a b c d", "a b c d e f"]
    words, scores, counts = measures.score_by_length(
        texts, list("wxyz"), list("WXYZ"), lambda *sides: float("".join(map("".join, sides)) == "wxWX"), 2
    )
    assert (words, counts) == ([1.5, 5.0], [2, 2])
    assert scores == [1.0, 0.0]


def test_neighbours_have_the_largest_cosine():
    table = np.array([[1, 0], [10, 1], [0, 5], [-3, 0], [1, 1]], np.float32)
    indices, similarities = measures.nearest_neighbours(table, 0, 4)
    assert indices.tolist() == [1, 4, 2, 3]
    np.testing.assert_allclose(similarities, [10 / 101**0.5, 0.5**0.5, 0, -1], atol=1e-12)
    assert len(measures.nearest_neighbours(table, 0, 2)[0]) == 2
    assert measures.nearest_neighbours(table, 0, 9)[0].tolist() == [1, 4, 2, 3]  # never the row itself
    np.testing.assert_array_equal(measures.nearest_neighbours(np.zeros((3, 2)), 0, 2)[1], [0, 0])


def test_norms_are_grouped_by_layer():
    layers = {f"layers_{i}": {"kernel": np.full((2, 2), i), "bias": np.full(2, 1.0)} for i in range(11)}
    norms = measures.group_norms(
        {"decoder": layers, "encoder": {"norm": np.ones(4)}, "embedding": np.ones(9)}
    )
    assert list(norms) == ["embedding", "encoder", *(f"decoder.layers_{i}" for i in range(11))]
    np.testing.assert_allclose(norms["decoder.layers_3"], (4 * 9 + 2) ** 0.5)
    assert (norms["embedding"], norms["encoder"]) == (3, 2)


@pytest.fixture(scope="module")
def run(tiny_run):
    return randomize_weights(runs.load(str(tiny_run)))


@pytest.mark.long
def test_norms_of_a_batch_equal_the_norms_of_the_gradient_of_its_loss(run):
    batch = next(iter(run.task.open_data().train_batches(0)))
    gradients, activations = measures.measure_norms(run.task, run.variables, batch)

    def mean_loss(params):
        total, count = run.task.loss({"params": params}, batch, Context()).terms["loss"]
        return total / count

    expected = jax.jit(jax.grad(mean_loss))(run.params)
    total = sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(expected))
    np.testing.assert_allclose(sum(norm**2 for norm in gradients.values()), total, rtol=1e-4)
    layers = ["encoder.layers_0", "encoder.layers_1", *(f"decoder.layers_{n}" for n in range(3))]
    assert list(gradients) == ["embedding", *layers]
    sublayers = {
        "encoder": ("self_attention", "feed_forward"),
        "decoder": ("self_attention", "cross_attention", "feed_forward"),
    }
    assert list(activations) == [
        f"{layer}.{name}_residual.output" for layer in layers for name in sublayers[layer[:7]]
    ]
    for value in activations.values():  # each sublayer ends in a LayerNorm of scale 1
        np.testing.assert_allclose(value, 1, atol=0.2)


def test_norms_of_a_loss_with_several_terms_are_those_of_the_sum_of_their_means():
    def loss(variables, batch, context):
        w = variables["params"]["w"]
        return LossOutput({"fit": ((batch * w).sum(), 2.0), "none": (w[0], 0.0), "size": (9 * w[1], 3.0)})

    task = types.SimpleNamespace(loss=loss)
    gradients, activations = measures.measure_norms(task, {"params": {"w": jnp.ones(2)}}, jnp.array([2.0, 4]))
    assert (gradients, activations) == (
        {"w": pytest.approx(((2 / 2 + 1) ** 2 + (4 / 2 + 3) ** 2) ** 0.5)},
        {},
    )


@pytest.mark.long
def test_batch_of_padding_is_an_error(run):
    batch = next(iter(run.task.open_data().train_batches(0)))
    empty = {name: np.zeros_like(each) for name, each in batch.items()}
    with pytest.raises(UserError, match="padding"):
        measures.measure_norms(run.task, run.variables, empty)
