"""Tests of the configs of recurrent translation models, and of their initial parameters."""

import functools

import jax
import numpy as np
import pytest

from tfm.errors import UserError
from tfm.systems.rnn_seq2seq.config import INITIALIZATIONS, RNNConfig
from tfm.systems.rnn_seq2seq.luong import LuongConfig
from tfm.systems.rnn_seq2seq.model import RNNSeq2Seq
from tfm.testing.models import quick_jit

TOKENS = np.ones((1, 2), int)


def test_defaults_are_those_of_bahdanau():
    """Appendices A.2 and B.1 of Bahdanau et al. 2015: E = 620, F = 1000, 500 maxouts."""
    config = RNNConfig()
    assert (config.embedding_features, config.hidden_features) == (620, 1000)
    assert (config.attention_features, config.output_features) == (1000, 500)
    assert (config.cell, config.layers, config.bidirectional, config.attention) == (
        "gru",
        1,
        True,
        "additive",
    )
    assert (config.initial_state, config.query, config.output) == ("projected", "previous", "maxout")
    assert (config.output_state, config.input_feeding) == ("previous", False)
    assert (config.initialization, config.dropout, config.forget_bias) == ("bahdanau", 0, 0)
    assert (config.share_embeddings, config.tie_output) == (False, False)


def test_defaults_are_those_of_luong():
    """Section 4.1 of Luong et al. 2015: four layers of 1000 cells, and a dropout of 0.2."""
    config = LuongConfig()
    assert (config.cell, config.layers, config.bidirectional, config.attention) == (
        "lstm",
        4,
        False,
        "general",
    )
    assert (config.embedding_features, config.hidden_features, config.output_features) == (1000, 1000, 1000)
    assert (config.initial_state, config.query, config.output) == ("copied", "current", "tanh")
    assert (config.output_state, config.input_feeding) == ("current", True)
    assert (config.initialization, config.dropout, config.forget_bias) == ("uniform", 0.2, 0)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"tie_output": True, "output_features": 6, "embedding_features": 5}, r"model\.tie_output.*6.*5"),
        ({"attention": "dot"}, r"model\.attention 'dot'.*model\.bidirectional=False"),
        ({"attention": "none", "initial_state": "copied"}, r"model\.initial_state 'projected', got 'copied'"),
        ({"forget_bias": 1.0}, r"forget gate.*'gru'.*model\.forget_bias=0"),
    ],
)
def test_fields_that_contradict_each_other_are_an_error(fields, name):
    with pytest.raises(UserError, match=name):
        RNNConfig(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"tie_output": True, "output_features": 6, "embedding_features": 6},
        {"attention": "dot", "bidirectional": False},
        {"attention": "none", "bidirectional": False, "initial_state": "copied"},
        {"initial_state": "copied"},
        {"forget_bias": 1.0, "cell": "lstm"},
    ],
)
def test_advice_of_the_errors_is_accepted(fields):
    config = RNNConfig(**fields)
    assert {name: getattr(config, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("bidirectional", "attention", "expected"),
    [
        (True, "additive", ("backward",)),
        (True, "none", ("forward", "backward")),
        (False, "additive", ("forward",)),
        (False, "none", ("forward",)),
    ],
)
def test_decoder_begins_with_the_direction_that_ends_at_the_first_word(bidirectional, attention, expected):
    config = RNNConfig(bidirectional=bidirectional, attention=attention)
    assert config.initial_directions == expected


def kind_of(path):
    """Returns the field of `Initializers` that initializes a parameter, by its name."""
    names = [key.key for key in path]
    if names[-1] in ("bias", "table", "vector"):
        return {"vector": "score"}.get(names[-1], names[-1])
    if names[-2].startswith("recurrent"):
        return "recurrent"
    return "attention" if "attention" in names else "kernel"


def initial_parts(cell, initialization):
    """Yields (path, kind, part) of the initial parameters; the parts of a kernel are those of its gates."""
    config = RNNConfig(
        cell=cell,
        initialization=initialization,
        embedding_features=60,
        hidden_features=40,
        attention_features=50,
        output_features=30,
    )
    init = quick_jit(functools.partial(RNNSeq2Seq(config, 200).init, train=False))
    params = init(jax.random.key(0), TOKENS, TOKENS)["params"]
    for path, x in jax.tree_util.tree_leaves_with_path(params):
        is_of_cell = any("cell" in key.key for key in path) and x.ndim == 2
        for part in np.split(np.asarray(x), x.shape[1] // 40 if is_of_cell else 1, axis=-1):
            yield jax.tree_util.keystr(path), kind_of(path), part


def assert_normal(x, deviation, path):
    tolerance = 3.5 / x.size**0.5
    assert x.std() == pytest.approx(deviation, rel=tolerance), path
    assert (np.abs(x) > 2 * deviation).mean() == pytest.approx(0.0455, abs=tolerance / 2), path


def assert_uniform(x, limit, path):
    shares = np.histogram(x, 5, (-limit, limit))[0] / x.size
    np.testing.assert_allclose(shares, 0.2, atol=1.8 / x.size**0.5, err_msg=path)
    assert np.abs(x).max() <= limit, path


def assert_orthogonal(x, path):
    np.testing.assert_allclose(x @ x.T, np.eye(len(x)), atol=1e-5, err_msg=path)


def glorot_limit(x):
    return (6 / sum(x.shape)) ** 0.5


EXPECTED = {
    "bahdanau": {  # appendix B.1
        "kernel": lambda x, path: assert_normal(x, 0.01, path),
        "recurrent": assert_orthogonal,
        "attention": lambda x, path: assert_normal(x, 0.001, path),
        "table": lambda x, path: assert_normal(x, 0.01, path),
    },
    "uniform": dict.fromkeys(
        ("kernel", "recurrent", "attention", "score", "bias", "table"),
        lambda x, path: assert_uniform(x, 0.1, path),
    ),
    "glorot": {
        "kernel": lambda x, path: assert_uniform(x, glorot_limit(x), path),
        "recurrent": assert_orthogonal,
        "attention": lambda x, path: assert_uniform(x, glorot_limit(x), path),
        "score": lambda x, path: assert_uniform(x, glorot_limit(x), path),
        "table": lambda x, path: assert_normal(x, x.shape[1] ** -0.5, path),
    },
}


@pytest.mark.long
@pytest.mark.parametrize("initialization", EXPECTED)
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_initial_parameters_are_those_of_the_initialization(cell, initialization):
    assert EXPECTED.keys() == INITIALIZATIONS.keys()
    expected, parts, kinds = EXPECTED[initialization], [], set()
    for path, kind, part in initial_parts(cell, initialization):
        kinds.add(kind)
        if kind in expected:
            expected[kind](part, path)
            parts.append(part.tobytes())
        else:
            assert not part.any(), path
    assert kinds == {"kernel", "recurrent", "attention", "score", "bias", "table"}
    assert len(set(parts)) == len(parts)  # no gate repeats another


@pytest.mark.parametrize(("output", "has_bias"), [("maxout", True), ("linear", True), ("tanh", False)])
@pytest.mark.parametrize("score", ["additive", "general"])
def test_only_the_layers_with_a_bias_in_their_papers_have_one(output, has_bias, score):
    """Luong et al. 2015, equation 5, and the score functions of both papers have no bias."""
    config = RNNConfig(output=output, attention=score, embedding_features=3, hidden_features=4)
    init = functools.partial(RNNSeq2Seq(config, 9).init, train=False)
    decoder = jax.eval_shape(init, jax.random.key(0), TOKENS, TOKENS)["params"]["decoder"]
    assert ("bias" in decoder["output"]) == has_bias
    assert "bias" not in decoder["attention"]["key"]
    assert "bias" in decoder["initial_0"]
