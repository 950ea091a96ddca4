"""Tests of BERT against its paper and against Hugging Face."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

from tfm import interpret
from tfm.devices.memory import count_elements
from tfm.errors import UserError
from tfm.systems.bert.model import Bert, BertConfig

FIXTURE = pathlib.Path(__file__).with_name("hf_bert.npz")  # see hf_bert.py next to it
VOCABULARY = 30_522  # published
LARGE = {"encoder_layers": 24, "d_model": 1024, "d_ff": 4096, "heads": 16}


def count(**fields):
    """Returns {name of a module: number of its parameters}."""
    model = Bert(BertConfig(**fields, scan=True), VOCABULARY)
    init = functools.partial(model.init, train=False)
    shapes = jax.eval_shape(init, jax.random.key(0), jnp.ones((1, 1), int))
    assert shapes.keys() == {"params"}
    return {name: count_elements(tree) for name, tree in shapes["params"].items()}


@pytest.mark.parametrize(("fields", "expected"), [({}, 109_482_240), (LARGE, 335_141_888)])
def test_encoder_and_pooler_have_the_published_number_of_parameters(fields, expected):
    counts = count(head="classes", **fields)
    assert counts.pop("head") == 2 * fields.get("d_model", 768) + 2
    assert sum(counts.values()) == expected


def test_pretraining_heads_add_the_published_number_of_parameters():
    counts = count()
    assert sum(counts.values()) == 110_106_428
    heads = counts["transform"] + counts["transform_norm"] + counts["follows"]
    assert heads + VOCABULARY == 110_106_428 - 109_482_240  # with the bias of the logits


@pytest.fixture(scope="module")
def arrays():
    """The arrays of the fixture."""
    return dict(np.load(FIXTURE))


@pytest.fixture(scope="module")
def outputs(arrays):
    """The outputs of tfm for all tokens, and for the predictions at the positions 1 and 3."""
    sizes = {"encoder_layers": 2, "d_model": 16, "d_ff": 24, "heads": 4, "max_positions": 12}
    model, tree = Bert(BertConfig(**sizes), 40), dict(arrays)
    tokens, types, *_ = (tree.pop(name) for name in ("tokens", "types", "logits", "follows"))

    @jax.jit
    def run(params, predicted):
        apply = functools.partial(model.apply, {"params": params}, tokens, train=False)
        return apply(types=types), apply(predicted, types=types, method="pretraining_outputs")

    params = unflatten_dict(tree, sep="/")
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), tokens, train=False))["params"]
    assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, params)
    return run(params, np.array([[1, 3]] * len(tokens)))


def test_pretraining_equals_hugging_face(arrays, outputs):
    (logits, follows), _ = outputs
    is_token = arrays["tokens"] > 0
    np.testing.assert_allclose(logits[is_token], arrays["logits"][is_token], atol=1e-5)
    # tfm's class 1 means that the second text follows the first. In Hugging Face, class 0 does.
    np.testing.assert_allclose(follows, arrays["follows"], atol=1e-5)


def test_fused_outputs_equal_the_logits_of_the_predicted_tokens(arrays, outputs):
    (logits, follows), ((x, table), fused_follows) = outputs
    np.testing.assert_allclose(x @ table.T, logits[:, [1, 3]], atol=1e-5)
    np.testing.assert_array_equal(fused_follows, follows)


def test_edit_without_a_point_is_an_error_in_the_outputs_of_pretraining(arrays):
    model = Bert(BertConfig(encoder_layers=1, d_model=4, d_ff=4, heads=1, max_positions=12), 40)
    edited = interpret.EditedModel(model, {"no_such_point": interpret.zero})
    keywords = {"types": arrays["types"], "train": False, "method": "pretraining_outputs"}
    variables = jax.eval_shape(lambda: model.init(jax.random.key(0), arrays["tokens"], train=False))
    predicted = np.array([[1]] * len(arrays["tokens"]))
    with pytest.raises(UserError, match="no_such_point"):
        jax.eval_shape(lambda tree: edited.apply(tree, arrays["tokens"], predicted, **keywords), variables)


def test_pretrained_heads_have_no_name_of_a_fine_tuned_head():
    assert not {"transform", "transform_norm", "follows"} & set(count(head="classes"))
    assert "head" not in count()
