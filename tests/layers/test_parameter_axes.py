"""Axis names that modules declare for their parameters."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from tfm.layers import declare_axes, parameter_axes
from tfm.models import Transformer, TransformerConfig


@pytest.fixture(autouse=True)
def _own_declarations(monkeypatch):
    monkeypatch.setattr(parameter_axes, "_declared", dict(parameter_axes._declared))


@pytest.mark.parametrize(
    ("path", "rank", "names"),
    [
        ("params/embedding/table", 2, ("vocabulary", "model")),
        ("params/encoder_positions/table", 2, ("positions", None)),
        ("opt_state/0/mu/decoder/layers_1/self_attention/output/kernel", 3, ("heads", "features", "model")),
        ("params/encoder/layers_0/feed_forward/output/kernel", 2, ("hidden", "model")),
        ("params/encoder/layers_0/feed_forward_residual/norm/scale", 1, (None,)),
        ("step", 0, ()),
    ],
)
def test_axes_by_the_end_of_a_path(path, rank, names):
    assert parameter_axes.parameter_axes(path, rank) == names


@pytest.mark.parametrize(
    "fields",
    [
        {"attention_bias": True, "positions": "learned"},
        {"positions": "relative_keys", "gated": True, "tied_embeddings": "none"},
        {"positions": "relative_bias", "key_value_heads": 2},
    ],
)
def test_every_matrix_of_the_transformer_is_named(fields):
    config = TransformerConfig(encoder_layers=1, decoder_layers=1, **fields)
    token = jnp.ones((1, 1), jnp.int32)
    model = Transformer(config, vocabulary_size=37_000)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), token, token, train=False))
    for path, x in jax.tree_util.tree_leaves_with_path(shapes["params"]):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        assert x.ndim < 2 or any(parameter_axes.parameter_axes(name, x.ndim)), name


def test_a_users_module_declares_its_axes():
    assert parameter_axes.parameter_axes("encoder/ffn/route/kernel", 2) == (None, None)

    @declare_axes({"route/kernel": ("model", "hidden"), "special/route/kernel": (None, "hidden")})
    class Routed(nn.Module):
        pass

    assert parameter_axes.parameter_axes("encoder/ffn/route/kernel", 2) == ("model", "hidden")
    assert parameter_axes.parameter_axes("encoder/special/route/kernel", 2) == (None, "hidden")
    assert parameter_axes.parameter_axes("encoder/ffn/aggregate/kernel", 2) == (None, None)
    assert parameter_axes.parameter_axes("encoder/ffn/route/kernel", 3) == (None, None, None)


def test_conflicting_axes_are_an_error():
    with pytest.raises(ValueError, match=r"Other declares .*'hidden/kernel'.*FeedForward has declared"):

        @declare_axes({"hidden/kernel": ("hidden", "model")})
        class Other(nn.Module):
            pass
