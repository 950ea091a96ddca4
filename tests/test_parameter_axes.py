"""Tests of the names of parameter axes, which modules declare and `record_axes` collects."""

import functools
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from tests.models.cases import LANGUAGE_MODELS, TRANSFORMERS
from tfm.devices.mesh import find_axes, record_axes

AXES = {
    "embedding/table": ("vocabulary", "model"),
    "layers_1/self_attention/output/kernel": ("heads", "features", "model"),
    "layers_1/output/kernel": ("hidden", "model"),
    "route/kernel": ("model", "hidden"),
    "special/route/kernel": (None, "hidden"),
}


@pytest.mark.parametrize(
    ("path", "rank", "names"),
    [
        ("params/embedding/table", 2, ("vocabulary", "model")),
        ("opt_state/0/mu/layers_1/self_attention/output/kernel", 3, ("heads", "features", "model")),
        ("opt_state/0/v_row/layers_1/self_attention/output/kernel", 2, (None, None)),
        ("layers_1/output/kernel", 2, ("hidden", "model")),
        ("layers_2/output/kernel", 2, (None, None)),
        ("ffn/route/kernel", 2, ("model", "hidden")),
        ("special/route/kernel", 2, (None, "hidden")),
        ("step", 0, ()),
    ],
)
def test_axes_are_those_of_the_longest_matching_suffix_of_the_path(path, rank, names):
    assert find_axes(AXES, path, rank) == names


@pytest.mark.parametrize("model", [*TRANSFORMERS.values(), *LANGUAGE_MODELS.values()])
def test_every_matrix_of_a_transformer_except_positions_has_named_axes(model):
    token = jnp.ones((1, 1), jnp.int32)
    tokens = (token, token) if hasattr(model.config, "encoder_layers") else (token,)
    shapes, axes = record_axes(functools.partial(model.init, train=False), jax.random.key(0), *tokens)
    for path, x in jax.tree_util.tree_leaves_with_path(shapes["params"]):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        is_of_positions = name.endswith(("positions/table", "position_bias/keys"))
        assert x.ndim < 2 or is_of_positions or any(find_axes(axes, name, x.ndim)), name


class Routed(nn.Module):
    parameter_axes: ClassVar = {"route/kernel": ("model", "hidden")}

    @nn.compact
    def __call__(self, x):
        return nn.Dense(4, name="route")(x)


class Twice(nn.Module):
    @nn.compact
    def __call__(self, x):
        return Routed(name="first")(x) + Routed(name="second")(x)


def test_axes_of_a_custom_module_are_recorded_at_every_use():
    shapes, axes = record_axes(Twice().init, jax.random.key(0), jnp.ones((1, 3)))
    assert shapes["params"]["first"]["route"]["kernel"].shape == (3, 4)
    assert axes == dict.fromkeys(("first/route/kernel", "second/route/kernel"), ("model", "hidden"))
