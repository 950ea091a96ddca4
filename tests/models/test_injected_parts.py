"""The parts of docs/mechanisms.md that come from outside, run as they stand there, each with its property."""

import dataclasses
import functools
import re
import sys

import flax.linen as nn
import jax
import numpy as np
import pytest

from tests.support.initialize import random_parameters
from tests.support.paths import ROOT
from tests.support.programs import FAST, decode_steps
from tests.support.tiny import MODEL, make_config, train_run
from tfm import config, models
from tfm.fields import info_of
from tfm.models import Transformer, TransformerConfig
from tfm.workdir import runs

TEXT = (ROOT / "docs" / "mechanisms.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
PACKAGE, *PARTS = BLOCKS
CONFIG = TransformerConfig(
    encoder_layers=1, decoder_layers=1, d_model=16, d_ff=24, heads=2, dropout=0.0, max_positions=9
)
RNG = np.random.default_rng(0)
INPUTS = RNG.integers(3, 20, (2, 7))
INPUTS[1, 4:] = 0
PADDED = np.array([[5, 6, 7, 0, 0, 0, 0], [8, 9, 10, 11, 0, 0, 0]])


@functools.cache
def defined():
    """The names that the code of the document defines."""
    names = {}
    for block in PARTS:
        exec(compile(block, "docs/mechanisms.md", "exec"), names)
    return names


@functools.cache
def build(name):
    """(model, random parameters) of a class of the document."""
    model = defined()[name](CONFIG, 20)
    return model, random_parameters(model, INPUTS, INPUTS)


@functools.partial(jax.jit, static_argnums=0, compiler_options=FAST)
def apply(model, params, inputs, targets, **packing):
    return model.apply({"params": params}, inputs, targets, train=False, **packing)


@functools.partial(jax.jit, static_argnums=0, compiler_options=FAST)
def encode(model, params, inputs, **packing):
    return model.apply({"params": params}, inputs, **packing, method="encode")


def difference(a, b):
    """The largest difference of each position."""
    return np.abs(np.asarray(a) - np.asarray(b)).max(-1)


def test_table_names_fields_and_all_choices():
    _, *rows = re.findall(r"^\| [^|]+ \| (`[^|]+) \|", TEXT, re.MULTILINE)
    assert len(rows) == 17
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    fields = {field.name: info_of(field).choices for field in dataclasses.fields(TransformerConfig)}
    assert named <= fields.keys()
    for name in named:
        words = {word for row in rows if f"`{name}`" in row for word in re.findall(r"\w+", row)}
        assert set(fields[name]) - {None} <= words, name


def test_all_parts_are_here():
    classes = {name for name, x in defined().items() if isinstance(x, type) and issubclass(x, Transformer)}
    assert classes - {"Transformer"} == {
        "EndsOnly",
        "OneHotPositions",
        "Convolutional",
        "BatchNormTransformer",
    }


@pytest.mark.long
@pytest.mark.parametrize("name", ["EndsOnly", "OneHotPositions", "Convolutional", "BatchNormTransformer"])
def test_cached_decoding_equals_the_forward_pass(name):
    model, params = build(name)
    tokens = RNG.integers(3, 20, (7, 2, 1))
    found = decode_steps(model, params, INPUTS, tokens, np.zeros_like(tokens), 8)
    full = apply(model, params, INPUTS, tokens[..., 0].T)
    np.testing.assert_allclose(found[:, :, 0].swapaxes(0, 1), full, atol=2e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", ["EndsOnly", "OneHotPositions", "Convolutional"])
def test_packed_sentences_equal_each_alone(name):
    model, params = build(name)
    packing = {
        "positions": np.array([[0, 1, 2, 0, 1, 2, 3]]),
        "segments": np.array([[1, 1, 1, 2, 2, 2, 2]]),
    }
    packed = encode(model, params, np.array([[5, 6, 7, 8, 9, 10, 11]]), **packing)
    alone = encode(model, params, PADDED)
    np.testing.assert_allclose(packed[0, :3], alone[0, :3], atol=1e-5)
    np.testing.assert_allclose(packed[0, 3:], alone[1, :4], atol=1e-5)


def reached(name, position):
    """Whether each position of the encoder's output depends on the token at one position."""
    model, params = build(name)
    other = INPUTS[:1].copy()
    other[0, position] = 3 + other[0, position] % 7
    return difference(encode(model, params, INPUTS[:1]), encode(model, params, other))[0] > 1e-6


def test_ends_alone_reach_all_positions():
    assert reached("EndsOnly", 0).all()
    assert reached("EndsOnly", 6).all()
    np.testing.assert_array_equal(reached("EndsOnly", 2), np.arange(7) == 2)


def test_one_hot_positions_equal_learned_ones():
    model, params = build("OneHotPositions")
    learned = Transformer(dataclasses.replace(CONFIG, positions="learned"), 20)
    tables = {
        f"{stack}_positions": {"table": params[f"{stack}_positions"]["rows"]["kernel"]}
        for stack in ("encoder", "decoder")
    }
    found, expected = (apply(*each, INPUTS, INPUTS) for each in ((model, params), (learned, params | tables)))
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.long
def test_convolutions_are_those_of_flax():
    module = defined()["Convolutions"](16, 24)
    x, mask = RNG.normal(size=(2, 6, 16)).astype(np.float32), np.ones((2, 1, 1, 6), bool)
    variables = module.init(jax.random.key(0), x, mask)
    hidden, output = (
        {**part, "kernel": part["kernel"].reshape(3, -1, part["kernel"].shape[-1])}
        for part in (variables["params"][name] for name in ("hidden", "output"))
    )
    expected = nn.Conv(24, (3,)).apply({"params": hidden}, x)
    expected = nn.Conv(16, (3,)).apply({"params": output}, nn.relu(expected))
    np.testing.assert_allclose(module.apply(variables, x, mask), expected, atol=1e-5)


def test_batch_norm_excludes_padding():
    module = defined()["BatchNorm"]()
    x, valid = 2 + RNG.normal(size=(3, 5, 4)), RNG.random((3, 5, 1)) < 0.6
    tokens = x[valid[..., 0]]
    expected = (x - tokens.mean(0)) / np.sqrt(tokens.var(0) + 1e-5)
    found, _ = module.init_with_output(jax.random.key(0), x.astype(np.float32), valid)
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.long
def test_batch_norm_reads_batch_without_padding():
    model, params = build("BatchNormTransformer")
    plain = encode(model, params, PADDED)
    wider = encode(model, params, np.pad(PADDED, ((0, 1), (0, 2))))
    np.testing.assert_allclose(wider[0, :3], plain[0, :3], atol=1e-5)
    other = PADDED.copy()
    other[1, :4] += 5
    assert difference(encode(model, params, other), plain)[0, :3].min() > 1e-3
    layer_norm = Transformer(CONFIG, 20)
    params = random_parameters(layer_norm, INPUTS, INPUTS)
    pair = (encode(layer_norm, params, inputs) for inputs in (PADDED, other))
    assert difference(*pair)[0, :3].max() < 1e-6


@pytest.mark.long
def test_variant_of_a_users_package_trains(corpus, tmp_path, monkeypatch):
    """Attention function, feed-forward network, norm and positions from 15 lines, for 50 steps."""
    lines = [line for line in PACKAGE.splitlines() if line and not line.startswith(("#", "import", "from"))]
    assert len(lines) <= 15
    (tmp_path / "my_lab").mkdir()
    (tmp_path / "my_lab" / "variant.py").write_text(PACKAGE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(config, "_allowed_modules", set())
    config.allow_modules(["my_lab"])
    settings = make_config(corpus, steps=50, warmup_steps=10, checkpoint_every=50, eval_every=50, log_every=5)
    settings = dataclasses.replace(settings, model=dataclasses.replace(MODEL, name="my_lab.variant"))
    rows = train_run(settings, tmp_path / "run")
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    assert losses[-1] < 0.8 * losses[0]
    run = runs.load(str(tmp_path / "run"))
    assert isinstance(run.task.model, models.find("my_lab.variant").Model)
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_lab"]:
        del sys.modules[name]
