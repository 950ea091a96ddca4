"""Learned positions (Table 3, row E): what their tables do, and that nothing goes beyond them unsaid."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.initialize import random_parameters
from tests.support.programs import FAST
from tests.support.tiny import make_config
from tfm.data.config import DataConfig
from tfm.decoding.generate import DecodingConfig
from tfm.errors import UserError
from tfm.export import stablehlo
from tfm.export.bundle import flat_parameters, write_bundle
from tfm.models import Transformer, TransformerConfig
from tfm.positions import sinusoidal_encoding
from tfm.tasks import translation
from tfm.tasks.translation.task import Config, Translation
from tfm.visualize.translation import examine
from tfm.workdir import runs
from tfm.workdir.translator import Translator

SINUSOIDS = TransformerConfig(encoder_layers=2, decoder_layers=1, d_model=16, d_ff=24, heads=2, dropout=0.0)
LEARNED = dataclasses.replace(SINUSOIDS, positions="learned", max_positions=9)
RNG = np.random.default_rng(0)
INPUTS, TARGETS = RNG.integers(3, 30, (2, 7)), RNG.integers(3, 30, (2, 6))
STACKS = ("encoder", "decoder")
LIMIT = 28  # no bucket's width: batches of 32 are cut


def build(config=LEARNED):
    model = Transformer(config, vocabulary_size=30)
    return model, random_parameters(model, INPUTS, TARGETS)


MODEL = Transformer(LEARNED, vocabulary_size=30)


@functools.cache
def parameters():
    return build()[1]


@functools.partial(jax.jit, static_argnames="model")
def apply(params, model, inputs, targets, **positions):
    return model.apply({"params": params}, inputs, targets, train=False, **positions)


def logits(params, model=MODEL, inputs=INPUTS, targets=TARGETS, **positions):
    return apply(params, model, inputs, targets, **positions)


def with_tables(params, change):
    """The parameters with each table of positions changed."""
    names = [f"{stack}_positions" for stack in STACKS]
    return params | {name: {"table": change(params[name]["table"])} for name in names}


@pytest.mark.long
def test_tables_of_sinusoids_equal_sinusoids():
    model, params = build(SINUSOIDS)
    assert parameters().keys() - params.keys() == {"encoder_positions", "decoder_positions"}
    sinusoids = jax.jit(lambda table: sinusoidal_encoding(jnp.arange(len(table)), table.shape[1]))
    tables = with_tables(parameters(), sinusoids)
    np.testing.assert_allclose(logits(tables), logits(params, model), atol=1e-5)


def test_tables_are_initialized_like_embeddings():
    model = Transformer(dataclasses.replace(LEARNED, max_positions=2000), vocabulary_size=30)

    @functools.partial(jax.jit, compiler_options=FAST)
    def init(key):
        params = model.init(key, INPUTS, TARGETS, train=False)["params"]
        return [params[f"{stack}_positions"]["table"] for stack in STACKS]  # no other is compiled

    tables = init(jax.random.key(0))
    for table in tables:
        assert np.std(table) == pytest.approx(16**-0.5, rel=0.02)
    assert not np.allclose(*tables)


def squares(params, model, positions):
    return (logits(params, model, **positions) ** 2).sum()


PACKED = {"input_positions": np.array([[0, 1, 2, 0, 1, 2, 3]] * 2)}


@pytest.mark.long
@pytest.mark.parametrize(
    ("fields", "positions", "used"), [({}, PACKED, (4, 6)), ({"remat": True, "scan": True}, {}, (7, 6))]
)
def test_gradients_reach_only_the_positions_used(fields, positions, used):
    model = Transformer(dataclasses.replace(LEARNED, **fields), vocabulary_size=30)
    gradient = jax.jit(jax.grad(squares), static_argnums=1, compiler_options=FAST)(
        parameters(), model, positions
    )
    for stack, rows in zip(STACKS, used, strict=True):
        table = np.abs(gradient[f"{stack}_positions"]["table"]).max(-1)
        assert (table[:rows] > 0).all()
        assert not table[rows:].any()


def test_lengths_beyond_the_table_are_errors():
    long = np.ones((2, 10), int)
    for arguments in ({"inputs": long}, {"targets": long}):
        with pytest.raises(ValueError, match=r"10 positions are more than the 9 of model\.max_positions"):
            logits(parameters(), **arguments)
    for inputs, most in ((long, 5), (INPUTS, 10)):
        with pytest.raises(ValueError, match="10 positions are more than the 9"):
            MODEL.apply({"params": parameters()}, inputs, width=1, max_length=most, method="init_cache")


def test_positions_beyond_the_table_are_nan():
    positions = np.arange(7) + np.array([[0], [3]])  # 9 is the first beyond
    found = np.asarray(logits(parameters(), input_positions=positions))
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1]).all()


@pytest.mark.long
def test_bfloat16_computes_with_float32_tables():
    model, params = build(dataclasses.replace(LEARNED, dtype="bfloat16"))
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    assert logits(params, model).dtype == jnp.bfloat16
    np.testing.assert_allclose(logits(params, model).astype("float32"), logits(parameters()), atol=0.2)


def config(**sections):
    model = TransformerConfig(positions="learned", max_positions=300, d_model=15, heads=3)
    fits = {"decoding": DecodingConfig(max_input=250, max_extra_tokens=50)}
    return Config(**{"model": model} | fits | sections)


def test_too_long_configured_lengths_are_errors():
    config(data=DataConfig(max_length=300))
    config(data=DataConfig(max_length=300, row_length=2000, batching="packed"))
    with pytest.raises(UserError, match=r"data\.max_length asks for 301 positions .* has 300"):
        config(data=DataConfig(max_length=301))
    with pytest.raises(UserError, match=r"decoding\.max_input \+ max_extra_tokens asks for 301 positions"):
        config(decoding=DecodingConfig(max_input=250, max_extra_tokens=51))
    config(model=SINUSOIDS, data=DataConfig(max_length=3000))


@pytest.fixture(scope="module")
def folder(corpus, tmp_path_factory):
    """Work directory with the vocabulary of a run, which is not trained."""
    folder = tmp_path_factory.mktemp("vocabulary")
    translation.create(make_config(corpus), str(folder))
    return folder


@pytest.fixture(scope="module")
def task(corpus, folder):
    return translation.create(make_config(corpus), str(folder), new=False)


def learned(task, positions=LIMIT):
    """A run with random parameters whose tables begin alike, whatever their length."""
    old = task.config
    settings = dataclasses.replace(
        old,
        model=dataclasses.replace(old.model, positions="learned", max_positions=positions),
        data=dataclasses.replace(old.data, max_length=LIMIT),
        decoding=DecodingConfig(beam_size=2, max_input=LIMIT - 2, max_extra_tokens=2),
    )
    task = Translation(settings, task.tokenizer)
    token = np.ones((1, 1), np.int32)
    params = random_parameters(task.model, token, token)
    params["embedding"]["table"] *= 3  # for sharper logits: all hypotheses would be much alike
    table = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
    return runs.Run(task, with_tables(params, lambda _: table[:positions]), [0])


@pytest.fixture(scope="module")
def run(task):
    return learned(task)


def text_of(run, tokens):
    """A text of this number of tokens, EOS counted."""
    text = run.task.tokenizer.decode(run.task.tokenizer.encode(["red dog runs " * 40])[0][: tokens - 1])
    assert len(run.task.tokenizer.encode([text])[0]) == tokens - 1
    return text


@pytest.mark.long
def test_a_table_of_exactly_max_length_suffices(run, task):
    texts = ["red dog", text_of(run, LIMIT - 2), text_of(run, 20)]
    targets = [text_of(run, LIMIT), "rot", text_of(run, LIMIT)]
    exact, longer = (Translator(each) for each in (run, learned(task, 64)))
    found = exact.hypotheses(texts, n_best=2)
    assert [[one.text for one in each] for each in found] == [
        [one.text for one in each] for each in longer.hypotheses(texts, n_best=2)
    ]
    assert all(text for text, _ in found[1])
    for a, b in zip(exact.score(texts, targets), longer.score(texts, targets), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)
        assert np.isfinite(a).all()
    assert exact.align(texts, targets) == longer.align(texts, targets)


def test_texts_beyond_the_table_are_user_errors(run):
    translator, beyond = Translator(run), "at most 28 tokens, as many as the model has positions, got up to"
    with pytest.raises(UserError, match=f"{beyond} 32: shorten .* or lower decoding.max_input"):
        translator.translate([text_of(run, 30)], max_input=40)
    with pytest.raises(UserError, match=f"{beyond} 30"):
        translator.hypotheses([text_of(run, 20)], prefixes=[text_of(run, 9)])
    for pair in (("red", text_of(run, 29)), (text_of(run, 29), "rot")):
        with pytest.raises(UserError, match=f"{beyond} 29"):
            translator.score(*([text] for text in pair))
    with pytest.raises(UserError, match=f"{beyond} 30"):
        stablehlo.search_program(run, 1, 28)


@pytest.mark.long
def test_attention_is_drawn_within_max_length(run):
    attention = examine(run.task, run.params, text_of(run, LIMIT - 2))
    assert attention.weights["cross"].shape[-1] == len(attention.source) == LIMIT - 2


def test_exports_hold_tables_and_their_length(run, folder, tmp_path):
    out = tmp_path / "out"
    write_bundle(run, str(out), workdir=str(folder))
    assert "positions learned, max_positions 28" in (out / "README.md").read_text()
    loaded = runs.load(str(out))
    jax.tree.map(np.testing.assert_array_equal, loaded.params, run.params)
    settings = json.loads((out / "config.json").read_text())
    for length, message in ((29, r"positions/table should be F32 \[29, 32\]"), (10**6, "is too small for")):
        settings["model"]["max_positions"] = length
        (out / "config.json").write_text(json.dumps(settings))
        with pytest.raises(UserError, match=message):
            runs.load(str(out))


@pytest.mark.long
def test_exported_programs_equal_the_translator(run):
    texts = ["red dog", text_of(run, LIMIT - 2)]
    inputs = np.zeros((2, LIMIT - 2), np.int32)
    for row, ids in zip(inputs, run.task.tokenizer.encode(texts), strict=True):
        row[: len(ids) + 1] = [*ids, 2]
    program = stablehlo.search_program(run, *inputs.shape)
    tokens, _, lengths = map(np.asarray, program.call(flat_parameters(run.params), inputs))
    found = [run.task.tokenizer.decode(row[:length]) for row, length in zip(tokens, lengths, strict=True)]
    assert found == Translator(run).translate(texts)
