"""Tests of a model inside Flax NNX: the code of docs/stability.md."""

import jax
import numpy as np
import pytest
from flax import nnx

from tests.support.pages import BLOCK, run_block
from tests.support.paths import ROOT


@pytest.fixture(scope="module")
def page():
    """Returns the names that the code of the page defines."""
    names = {}
    text = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8")
    for code, _ in BLOCK.findall(text):
        run_block(code, "docs/stability.md", names)
    return names


def test_model_in_nnx_equals_the_linen_model(page):
    expected = page["linen"].apply({"params": page["params"]}, page["tokens"], page["tokens"], train=False)
    np.testing.assert_allclose(page["logits"], expected, atol=1e-6)


@pytest.mark.long
def test_gradient_in_nnx_equals_the_gradient_of_the_linen_model(page):
    tokens = page["tokens"]
    found = nnx.grad(lambda model: (model(tokens, tokens, train=False) ** 2).mean())(page["model"])

    def loss(params):
        return (page["linen"].apply({"params": params}, tokens, tokens, train=False) ** 2).mean()

    expected = jax.grad(loss)(page["params"])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), nnx.to_pure_dict(found), expected)
