"""Tests of observations of models: attention weights, norms of values, and tracks of images."""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from tfm.errors import UserError
from tfm.interpret import observation
from tfm.interpret.observation import check_length, image_track, observe
from tfm.layers import MultiHeadAttention
from tfm.layers.observe import observe as report

X = np.random.default_rng(0).normal(size=(1, 5, 8)).astype(np.float32)
LABELS = np.array([[3, 0, 7, 1, 1]])


def softmax_of_labels(logits):
    """Returns the probabilities of `LABELS` for logits [L, V]."""
    return scipy.special.softmax(logits, axis=-1)[np.arange(5), LABELS[0]]


class OneLayer(nn.Module):
    """A layer of self-attention whose G groups of heads share their values."""

    groups: int
    attention_points: ClassVar = {"encoder": "attention.weights"}
    attention_tracks: ClassVar = {"encoder": ("source", "source")}

    def setup(self):
        self.attention = MultiHeadAttention(features=8, heads=4, use_bias=True, key_value_heads=self.groups)

    def __call__(self, x, train):
        return self.attention(x, x, mask=None, train=train)


class OwnAttention(nn.Module):
    """User-defined attention that reports only its weights."""

    attention_points: ClassVar = {"cross": "weights"}
    attention_tracks: ClassVar = {"cross": ("predicted", "source")}

    def __call__(self, x, train):
        weights = jnp.broadcast_to(jax.nn.softmax(x @ x.mT)[:, None], (1, 2, 5, 5))
        return report(self, "weights", weights, "BHLM", editable=False)[:, 0] @ x


class MissingWeights(OwnAttention):
    """A model that does not compute the weights in its `attention_points`."""

    def __call__(self, x, train):
        return x


class NoAttention(nn.Module):
    """A model without attention."""

    def __call__(self, x, train):
        return x


@pytest.mark.long
@pytest.mark.parametrize("groups", [4, 2, 1])
def test_norms_are_of_the_vectors_that_sum_to_the_output(groups):
    model = OneLayer(groups)
    variables = jax.device_get(jax.jit(lambda x: model.init(jax.random.key(1), x, train=False))(X))
    params = variables["params"]["attention"]
    params["value"]["bias"] = np.arange(2.0 * groups, dtype=np.float32).reshape(groups, 2)
    probabilities, attention = observe(model, variables, X, labels=LABELS)
    weights = attention["encoder"].weights
    value = np.einsum("bmd,dhv->mhv", X, params["value"]["kernel"]) + params["value"]["bias"]
    values = np.repeat(value, 4 // groups, axis=1)
    added = np.einsum("hlm,mhv,hvd->hlmd", weights[0], values, params["output"]["kernel"])
    expected = softmax_of_labels(added.sum((0, 2)) + params["output"]["bias"])
    np.testing.assert_allclose(probabilities.of_labels[0], expected, rtol=1e-4)
    np.testing.assert_allclose(attention["encoder"].norms[0], np.linalg.norm(added, axis=-1), atol=1e-5)
    joint = np.linalg.norm(added.sum(0), axis=-1)
    np.testing.assert_allclose(attention["encoder"].joint_norms[0], joint, atol=1e-5)


def test_user_defined_attention_has_no_norms_and_padding_is_removed():
    lengths = {"predicted": 3, "source": 4}
    probabilities, attention = observe(OwnAttention(), {"params": {}}, X, labels=LABELS, lengths=lengths)
    found, whole = (
        each["cross"] for each in (attention, observe(OwnAttention(), {"params": {}}, X, labels=LABELS)[1])
    )
    assert (found.queries, found.keys, found.weights.shape) == ("predicted", "source", (1, 2, 3, 4))
    assert (found.norms, found.joint_norms) == (None, None)
    np.testing.assert_array_equal(whole.weights[..., :3, :4], found.weights)
    expected = softmax_of_labels(whole.weights[0, 0] @ X[0])
    np.testing.assert_allclose(probabilities.of_labels[0], expected, rtol=1e-5)


def test_model_without_attention_has_predictions_only():
    probabilities, attention = observe(NoAttention(), {"params": {}}, X, labels=LABELS)
    assert attention == {}
    np.testing.assert_array_equal(probabilities.ids[0], np.argsort(-X[0], axis=-1))


class SeveralOutputs(NoAttention):
    """A model whose first output are the logits."""

    def __call__(self, x, train):
        return x, -x[:, 0]


def test_first_of_several_outputs_has_the_predictions():
    probabilities, _ = observe(SeveralOutputs(), {"params": {}}, X, labels=LABELS)
    plain, _ = observe(NoAttention(), {"params": {}}, X, labels=LABELS)
    np.testing.assert_array_equal(probabilities.of_labels, plain.of_labels)


def test_declared_weights_that_are_not_computed_are_an_error():
    with pytest.raises(UserError, match=r"'weights'.*tfm\.layers\.observe"):
        observe(MissingWeights(), {"params": {}}, X, labels=LABELS)


class UnnamedPoint(OwnAttention):
    """A model whose `attention_points` lack a kind of attention."""

    attention_tracks: ClassVar = {"encoder": ("source", "source")}


def test_tracks_without_a_point_are_an_error():
    with pytest.raises(UserError, match=r"attention_tracks.*'encoder'.*attention_points"):
        observe(UnnamedPoint(), {"params": {}}, X, labels=LABELS)


def test_example_that_exceeds_the_memory_or_the_limit_is_an_error(monkeypatch):
    monkeypatch.setattr(observation, "host_memory", lambda: 10)
    with pytest.raises(UserError, match=r"attention .* needs"):
        observe(OwnAttention(), {"params": {}}, X, labels=LABELS)
    with pytest.raises(UserError, match=r"at most 64 tokens, got 65.*--max_tokens"):
        check_length(65, 64)
    check_length(64, 64)


def test_patches_follow_the_class_token_of_an_image():
    image = np.array([-1.0, 0, 1, 2]).reshape(2, 2, 1)
    track = image_track(image, 5)
    assert track.labels == ["class token", *(f"row {i}, column {j}" for i in range(2) for j in range(2))]
    assert track.grid == (2, 2)
    assert track.picture.tolist() == [[0, 128], [255, 255]]
    assert image_track(np.zeros((2, 2, 3)), 4).picture.shape == (2, 2, 3)
    assert image_track(np.zeros((2, 2, 3)), 4).labels[0] == "row 0, column 0"
