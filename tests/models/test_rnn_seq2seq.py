"""The recurrent models against NumPy float64, packed against single sentences, and decoding against both."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.references import numpy_rnn
from tests.support.initialize import random_parameters
from tests.support.programs import FAST, decode_steps
from tests.support.tiny import make_config
from tfm import models
from tfm.config import find_by_name, from_mapping
from tfm.data.tokenizer import BOS_ID, EOS_ID
from tfm.decoding.generate import DecodingConfig, decode
from tfm.decoding.protocol import SequenceToSequence
from tfm.decoding.scoring import attend_pairs, score_pairs
from tfm.errors import UserError
from tfm.layers.recurrent import GRUCell, LSTMCell, segment_begins
from tfm.models.rnn_luong import LuongConfig
from tfm.models.rnn_seq2seq import INITIALIZATIONS, RNNConfig, RNNSeq2Seq, last_read
from tfm.tasks import translation
from tfm.visualize.translation import examine
from tfm.workdir import runs
from tfm.workdir.translator import Translator

V = 15
SIZES = {
    "embedding_features": 6,
    "hidden_features": 5,
    "attention_features": 4,
    "output_features": 7,
    "dropout": 0.0,
}
# All choices of every field, in as few models as have them.
CONFIGS = {
    "bahdanau": RNNConfig(**SIZES),
    "luong": LuongConfig(**SIZES | {"layers": 2}),
    "dot": LuongConfig(**SIZES | {"layers": 1, "attention": "dot", "forget_bias": 1.0}),
    "mixed": RNNConfig(
        **SIZES | {"output_features": 6, "share_embeddings": True, "tie_output": True, "layers": 2},
        cell="lstm",
        query="current",
        output="linear",
        output_state="current",
    ),
    "fed": RNNConfig(**SIZES, input_feeding=True, initial_state="copied", attention="general"),
    "none": RNNConfig(**SIZES, attention="none"),
    "none lstm": RNNConfig(**SIZES | {"layers": 2}, cell="lstm", attention="none"),
    "none fed": LuongConfig(**SIZES | {"layers": 1, "attention": "none"}),
}
NAMES = list(CONFIGS)
SOURCES = [[3, 9, 4, 4, 12, 7, EOS_ID], [5, 3, EOS_ID], [8, 14, 6, 3, EOS_ID]]
TARGETS = [[BOS_ID, 6, 6, 13], [BOS_ID, 4, 10, 3, 11, 5], [BOS_ID, 12]]


def pad(sentences, width):
    return np.array([[*each, *[0] * (width - len(each))] for each in sentences], np.int32)


INPUTS, DECODER_INPUTS = pad(SOURCES, 9), pad(TARGETS, 6)
BUILT = {}


def build(name):
    """The model, with parameters that are large enough for every part to matter."""
    if name not in BUILT:
        model = RNNSeq2Seq(CONFIGS[name], V)
        params = jax.eval_shape(
            lambda: model.init(jax.random.key(0), INPUTS, DECODER_INPUTS, train=False)["params"]
        )
        rng = np.random.default_rng(0)
        params = jax.tree.map(lambda x: 0.7 * rng.normal(size=x.shape).astype(np.float32), params)
        BUILT[name] = model, params
    return BUILT[name]


@functools.partial(jax.jit, static_argnames=("model", "train", "mutable"), compiler_options=FAST)
def apply(model, params, *arguments, seed=0, **options):
    """`model.apply`, compiled at once and in a hurry."""
    rngs = {"dropout": jax.random.key(seed)}
    return model.apply({"params": params}, *arguments, rngs=rngs, **options)


def forward(name, inputs, targets, **packing):
    """Logits, and attention weights or None."""
    model, params = build(name)
    logits, collected = apply(model, params, inputs, targets, train=False, mutable=("attention",), **packing)
    if model.config.attention == "none":
        return np.asarray(logits), None
    return np.asarray(logits), np.asarray(model.source_attention(collected))[0, :, 0]


@pytest.fixture(scope="module")
def batched():
    """name -> the results for the padded batch, computed once."""
    found = {}

    def get(name):
        if name not in found:
            found[name] = forward(name, INPUTS, DECODER_INPUTS)
        return found[name]

    return get


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_equals_numpy_sentence_by_sentence(name, batched):
    """With any padding and longer sentences in the batch."""
    logits, attention = batched(name)
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), build(name)[1])
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        expected, weights = numpy_rnn.rnn(CONFIGS[name], params, source, target)
        np.testing.assert_allclose(logits[row, : len(target)], expected, atol=2e-4)
        if weights is not None:
            np.testing.assert_allclose(attention[row, : len(target), : len(source)], weights, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", ["bahdanau", "luong", "mixed", "none", "none lstm"])
def test_packed_rows_equal_single_sentences(name, batched):
    """States restart with each segment, and each decoder with its own source's state."""
    order = (1, 2, 0)

    def pack(sides, width):
        tokens = [token for i in order for token in sides[i]]
        segments = [number for number, i in enumerate(order, 1) for _ in sides[i]]
        return pad([tokens], width), pad([segments], width)

    (inputs, input_segments), (targets, target_segments) = pack(SOURCES, 17), pack(TARGETS, 14)
    logits, attention = forward(
        name, inputs, targets, input_segments=input_segments, target_segments=target_segments
    )
    single, single_attention = batched(name)
    first = source_first = 0
    for i in order:
        last, source_last = first + len(TARGETS[i]), source_first + len(SOURCES[i])
        np.testing.assert_allclose(logits[0, first:last], single[i, : len(TARGETS[i])], atol=1e-5)
        if attention is not None:
            own = attention[0, first:last, source_first:source_last]
            np.testing.assert_allclose(own.sum(-1), 1, atol=1e-5)
            expected = single_attention[i, : len(TARGETS[i]), : len(SOURCES[i])]
            np.testing.assert_allclose(own, expected, atol=1e-5)
        first, source_first = last, source_last
    assert np.isfinite(logits).all()


@pytest.mark.parametrize("name", ["bahdanau", "luong"])
def test_attention_is_on_real_tokens(name, batched):
    _, attention = batched(name)
    np.testing.assert_allclose(attention.sum(-1), 1, atol=1e-5)
    for row, source in enumerate(SOURCES):
        assert not attention[row, :, len(source) :].any()
        assert attention[row, :, : len(source)].min() > 0


@pytest.mark.long
@pytest.mark.parametrize("name", ["bahdanau", "luong"])
def test_gradients_are_causal_and_finite(name):
    """Padding, which may attend to nothing, gives no NaN; logits depend on no later target."""
    model, params = build(name)
    table, tokens = params["target_embedding"]["table"], np.array([[1, 6, 4, 13, 0, 0]])
    segments = (tokens > 0).astype(np.int32)

    def at_position(delta, position):
        """The logits there, where each position has a row of the table of its own."""
        own = {**params, "target_embedding": {"table": table.at[: len(delta)].add(delta)}}
        x, output = model.apply(
            {"params": own},
            INPUTS[:1],
            jnp.arange(tokens.shape[1])[None],
            input_segments=(INPUTS[:1] > 0).astype(np.int32),
            target_segments=segments,
            train=False,
            method="features",
        )
        return (x @ output.T)[0, position].sum()

    table = jnp.asarray(table).at[: tokens.shape[1]].set(table[tokens[0]])
    gradients = jax.jit(jax.grad(at_position), compiler_options=FAST)
    for position in (0, 2, 3):
        gradient = np.asarray(gradients(jnp.zeros((tokens.shape[1], table.shape[1])), position))
        assert np.isfinite(gradient).all()
        assert not gradient[position + 1 :].any()
        assert np.abs(gradient[: position + 1]).max(-1).min() > 0


@pytest.mark.long
@pytest.mark.parametrize("name", ["bahdanau", "luong", "mixed", "none fed"])
def test_cached_decoding_equals_the_forward_pass(name):
    """Hypotheses extend random parents, as a beam does; each must have its own parent's state."""
    model, params = build(name)
    rng, width, length = np.random.default_rng(1), 2, 4
    tokens, parents = rng.integers(3, V, (length, 3, width)), rng.integers(0, width, (length, 3, width))
    tokens[0] = BOS_ID
    logits = np.asarray(decode_steps(model, params, INPUTS, tokens, parents, 9))
    history, found = np.zeros((3, width, 0), int), []
    for position in range(length):
        history = np.concatenate([history, tokens[position][..., None]], axis=-1)
        found.append(logits[position])
        chosen = parents[position][..., None]
        history = np.take_along_axis(history, chosen, axis=1)
        found = [np.take_along_axis(each, chosen, axis=1) for each in found]
    for w in range(width):
        padded = np.pad(history[:, w], ((0, 0), (0, DECODER_INPUTS.shape[1] - length)))
        full, _ = forward(name, INPUTS, padded.astype(np.int32))
        for position in range(length):
            np.testing.assert_allclose(found[position][:, w], full[:, position], atol=1e-5)


SEARCHES = {
    "greedy": {"beam_size": 1},
    "beam": {"beam_size": 3},
    "coverage": {"beam_size": 2, "coverage_penalty": 0.2},
    "samples": {"samples": 2},
}


@pytest.mark.long
@pytest.mark.parametrize("search", SEARCHES)
def test_scores_of_the_search_are_those_of_a_pass(search):
    """Of an ensemble of two, with prefixes, whatever sentences are searched beside."""
    model, params = build("luong")
    members = (params, jax.tree.map(lambda x: 0.8 * x, params))
    config = DecodingConfig(length_penalty=0.0, max_extra_tokens=2, **SEARCHES[search])
    prefixes = [[6], [], [4, 5]]
    found = decode(model, members, SOURCES, config, prefixes=prefixes)
    best = [each[0] for each in found]
    for hypothesis, prefix in zip(best, prefixes, strict=True):
        assert hypothesis.ids[: len(prefix)] == prefix
        assert hypothesis.ids[-1] == EOS_ID
    if search == "coverage":
        plain = decode(model, members, SOURCES, dataclasses.replace(config, coverage_penalty=0.0))
        assert any(each.score < other[0].score for each, other in zip(best, plain, strict=True))
        return
    scores = score_pairs(model, members, SOURCES, [each.ids for each in best], config)
    np.testing.assert_allclose([each.score for each in best], [x.sum() for x in scores], atol=1e-4)


def test_alignments_are_the_attention(batched):
    model, params = build("bahdanau")
    targets = [[*target[1:], EOS_ID] for target in TARGETS]
    found = attend_pairs(model, params, SOURCES, targets, DecodingConfig())
    for row, weights in enumerate(found):
        assert weights.shape == (len(targets[row]), len(SOURCES[row]))
        # The last position, which predicts EOS after the whole target, is one more than the batch's.
        expected = batched("bahdanau")[1][row, : len(TARGETS[row]), : len(SOURCES[row])]
        np.testing.assert_allclose(weights[: len(TARGETS[row])], expected, atol=1e-5)


def test_without_attention_there_is_no_alignment():
    model, params = build("none")
    assert model.attention_maps({}) == {}
    with pytest.raises(UserError, match=r"model\.attention is 'none'"):
        attend_pairs(model, params, SOURCES, SOURCES, DecodingConfig())
    with pytest.raises(UserError, match=r"model\.attention is 'none'"):
        decode(model, params, SOURCES, DecodingConfig(coverage_penalty=0.1))


def test_without_attention_the_last_state_counts(batched):
    """A decoder that begins with another state than its source's gives other logits, all through it."""
    logits, _ = batched("none")
    others, _ = forward("none", INPUTS[[1, 1, 1]], DECODER_INPUTS)
    assert np.abs(logits - others).max((1, 2)).tolist()[1] == 0
    assert (np.abs(logits - others).max(-1)[[0, 2]] > 1e-4).all()


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_has_a_gradient(name):
    """A part of the model that nothing reads would make a comparison of models unfair."""
    model, params = build(name)

    def total(params):
        return (model.apply({"params": params}, INPUTS, DECODER_INPUTS, train=False) ** 2).sum()

    gradients, _ = jax.tree.flatten_with_path(jax.jit(jax.grad(total), compiler_options=FAST)(params))
    assert gradients
    assert [jax.tree_util.keystr(path) for path, x in gradients if not np.abs(x).max() > 0] == []


@pytest.mark.long
def test_dropout_in_training_only(batched):
    config = dataclasses.replace(CONFIGS["luong"], dropout=0.5)
    model, (_, params) = RNNSeq2Seq(config, V), build("luong")

    def run(seed, train):
        return apply(model, params, INPUTS, DECODER_INPUTS, train=train, seed=seed)

    assert not np.allclose(run(0, True), run(1, True))
    np.testing.assert_allclose(run(0, False), batched("luong")[0], atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", ["bahdanau", "luong"])
def test_bfloat16_is_near_float32(name, batched):
    model, params = build(name)
    model = RNNSeq2Seq(dataclasses.replace(model.config, dtype="bfloat16"), V)
    found = apply(model, params, INPUTS, DECODER_INPUTS, train=False)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(found, np.float32), batched(name)[0], atol=0.4)


@pytest.mark.long
def test_the_gru_resets_before_its_matrix():
    """Flax's resets after it; with r = 1, or h = 0, the two are one."""
    cell = GRUCell(4, INITIALIZATIONS["glorot"])
    h, x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    params = jax.jit(cell.init)(jax.random.key(0), h, x)["params"]
    w, u = np.split(params["input"]["kernel"], 3, 1), np.split(params["recurrent_gates"]["kernel"], 2, 1)
    zeros = np.zeros(4, np.float32)
    flax = {f"i{gate}": {"kernel": kernel, "bias": zeros} for gate, kernel in zip("rzn", w, strict=True)}
    flax |= {f"h{gate}": {"kernel": kernel} for gate, kernel in zip("rz", u, strict=True)}
    flax["hn"] = {"kernel": params["recurrent_candidate"]["kernel"], "bias": zeros}
    # Flax's update gate keeps where the paper's replaces.
    flax["iz"], flax["hz"] = {"kernel": -w[1], "bias": zeros}, {"kernel": -u[1]}

    @jax.jit
    def outputs(h):
        theirs, _ = nn.GRUCell(4).apply({"params": flax}, h, x)
        return cell.apply({"params": params}, h, x)[0], theirs

    np.testing.assert_allclose(*outputs(np.zeros_like(h)), atol=1e-6)
    assert np.abs(np.subtract(*outputs(h))).max() > 1e-2


@pytest.mark.long
def test_the_lstm_is_that_of_flax():
    """With the constant added to the bias of the forget gate."""
    cell = LSTMCell(4, INITIALIZATIONS["glorot"], forget_bias=1.5)
    state = tuple(np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32))
    x = np.ones((3, 2), np.float32)
    params = jax.jit(cell.init)(jax.random.key(0), state, x)["params"]
    assert not params["input"]["bias"].any()
    w, u = (np.split(params[name]["kernel"], 4, axis=1) for name in ("input", "recurrent"))
    flax = {f"i{gate}": {"kernel": kernel} for gate, kernel in zip("ifgo", w, strict=True)}
    for gate, kernel in zip("ifgo", u, strict=True):
        flax[f"h{gate}"] = {"kernel": kernel, "bias": np.full(4, 1.5 * (gate == "f"), np.float32)}
    found, _ = jax.jit(cell.apply)({"params": params}, state, x)
    expected, _ = jax.jit(nn.OptimizedLSTMCell(4).apply)({"params": flax}, state, x)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_segments_begin_and_end():
    inputs, targets = jnp.array([[1, 1, 2, 2, 2, 0]]), jnp.array([[1, 2, 2, 0]])
    assert segment_begins(inputs)[0].tolist() == [True, False, True, False, False, True]
    assert last_read(targets, inputs, backwards=False)[0].tolist() == [1, 4, 4, 5]
    assert last_read(targets, inputs, backwards=True)[0].tolist() == [0, 2, 2, 5]


def initial(config, select=lambda params: params):
    """The parameters, or those that a test selects: no others are compiled."""
    token = jnp.ones((1, 1), jnp.int32)
    init = jax.jit(
        lambda key: select(RNNSeq2Seq(config, 300).init(key, token, token, train=False)["params"]),
        compiler_options=FAST,
    )
    return init(jax.random.key(0))


@pytest.mark.long
def test_initialization_is_the_papers():
    sizes = {"hidden_features": 16, "embedding_features": 50}
    gates, decoder = initial(
        RNNConfig(**sizes, attention_features=60, output_features=30),
        lambda params: (
            params["encoder"]["backward_0"]["cell"]["recurrent_gates"]["kernel"],
            {name: params["decoder"][name] for name in ("attention", "output")}
            | {"bias": params["decoder"]["cells_0"]["input"]["bias"]},
        ),
    )
    for gate in np.split(gates, 2, axis=1):
        np.testing.assert_allclose(gate @ gate.T, np.eye(16), atol=1e-5)
    assert np.std(decoder["attention"]["key"]["kernel"]) == pytest.approx(0.001, rel=0.1)
    assert np.std(decoder["output"]["kernel"]) == pytest.approx(0.01, rel=0.1)
    assert not decoder["attention"]["vector"].any()
    assert not decoder["bias"].any()
    leaves = jax.tree.leaves(initial(LuongConfig(**sizes, output_features=30, layers=1)))
    assert max(np.abs(x).max() for x in leaves) <= 0.1
    assert min(np.abs(x).max() for x in leaves) > 0.09


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_counted_exactly(name):
    model, params = build(name)
    assert model.memory_estimate.count_parameters() == sum(x.size for x in jax.tree.leaves(params))


def test_defaults_are_the_papers():
    """Bahdanau et al. 2015, appendix A.2.3; Luong et al. 2015, section 4.1."""
    config = RNNConfig()
    assert (config.hidden_features, config.embedding_features, config.output_features) == (1000, 620, 500)
    assert (config.attention_features, config.layers, config.cell) == (1000, 1, "gru")
    luong = from_mapping(LuongConfig, {"name": "rnn_luong"}, "config.model")
    assert (luong.hidden_features, luong.embedding_features, luong.layers) == (1000, 1000, 4)
    assert (luong.cell, luong.input_feeding, luong.query, luong.dropout) == ("lstm", True, "current", 0.2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tie_output": True}, r"model\.tie_output needs as many .* 500 .* 620"),
        ({"attention": "dot"}, r"model\.attention 'dot' .* set model\.bidirectional=False"),
        (
            {"attention": "none", "initial_state": "copied"},
            r"model\.initial_state 'projected'.*model\.bidirectional=False",
        ),
        ({"forget_bias": 1.0}, r"model\.forget_bias is of an LSTM"),
        ({"attention": "multiplicative"}, r"model\.attention .*'additive'"),
        ({"hidden_features": 0}, r"model\.hidden_features "),
        ({"cell": "rnn"}, r"model\.cell "),
    ],
)
def test_impossible_configs_are_errors(fields, message):
    with pytest.raises(UserError, match=message):
        RNNConfig(**fields)


def test_models_are_found_by_name_and_translate():
    for name in ("rnn_seq2seq", "rnn_luong"):
        found = find_by_name(models, name, "config.model.name", needs=("Config", "Model"))
        assert found.Config().name == name
        assert isinstance(found.Model(found.Config(), vocabulary_size=9), SequenceToSequence)


@pytest.mark.long
def test_the_task_translates_and_aligns(corpus, tmp_path):
    """Through the functions of the commands; pictures are of the attention to the source."""
    config = dataclasses.replace(make_config(corpus), model=RNNConfig(**SIZES))
    task = translation.create(config, str(tmp_path))
    token = np.ones((1, 1), np.int32)
    run = runs.Run(task, random_parameters(task.model, token, token), [0])
    assert task.d_model is None
    translator, texts = Translator(run), ["red dog", "small cat runs"]
    assert len(translator.translate(texts, beam_size=1, max_extra_tokens=2)) == 2
    assert [len(line.split()) for line in translator.align(texts, texts)] == [2, 3]
    attention = examine(task, run.params, "red dog")
    assert list(attention.weights) == ["cross"]
    assert attention.weights["cross"].shape[:2] == (1, 1)
    np.testing.assert_allclose(attention.weights["cross"].sum(-1), 1, atol=1e-5)
