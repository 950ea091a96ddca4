"""Tests of the rows of Table 3: their fields, published scores and parameter counts."""

import dataclasses

import pytest

from tfm.commands.command import parse
from tfm.commands.options import Train
from tfm.devices.memory import count_elements
from tfm.sweep import table3
from tfm.tasks import translation
from tfm.training.task import variable_shapes

ROWS = {variant.name: variant for variant in table3()}
# Millions of parameters of the code of the authors. The code has 40,960 word pieces, biases in all
# projections of an attention and a table of 32 "target spaces".
AUTHORS_VOCABULARY, TARGET_SPACES = 40_960, 32
COUNTS = {
    "base": 65.13,
    **dict.fromkeys(("A-h1", "A-h4", "A-h16", "A-h32"), 65.13),
    "B-dk16": 58.03,
    "B-dk32": 60.40,
    "C-N2": 35.70,
    "C-N4": 50.41,
    "C-N8": 79.84,
    "C-d256": 27.86,
    "C-d1024": 167.98,
    "C-dff1024": 52.53,
    "C-dff4096": 90.32,
    **dict.fromkeys(("D-dropout0.0", "D-dropout0.2", "D-smoothing0.0", "D-smoothing0.2"), 65.13),
    "big": 218.33,
}
# Perplexity and BLEU on newstest2013, and millions of parameters, copied from Table 3 of the paper.
PUBLISHED = """
base 4.92 25.8 65
A-h1 5.29 24.9
A-h4 5.00 25.5
A-h16 4.91 25.8
A-h32 5.01 25.4
B-dk16 5.16 25.1 58
B-dk32 5.01 25.4 60
C-N2 6.11 23.7 36
C-N4 5.19 25.3 50
C-N8 4.88 25.5 80
C-d256 5.75 24.5 28
C-d1024 4.66 26.0 168
C-dff1024 5.12 25.4 53
C-dff4096 4.75 26.2 90
D-dropout0.0 5.77 24.6
D-dropout0.2 4.95 25.5
D-smoothing0.0 4.67 25.3
D-smoothing0.2 5.47 25.7
E-learned 4.92 25.7
big 4.33 26.4 213
"""


def read(variant, *more):
    argv = ["--config=table3", *variant.flags, *more, "--workdir=none"]
    return parse(Train, argv).config


def count(config):
    return count_elements(variable_shapes(translation.plan(config))["params"])


def test_variants_are_the_rows_of_the_paper():
    assert [name for name in ROWS if name != "E-learned"] == list(COUNTS)


def test_published_numbers_are_those_of_the_paper():
    units = {"perplexity": 1.0, "BLEU": 1.0, "parameters": 1e6}
    found = {name: [row.published[key] / units[key] for key in row.published] for name, row in ROWS.items()}
    assert found == {
        name: list(map(float, row)) for name, *row in map(str.split, PUBLISHED.split("\n")[1:-1])
    }


@pytest.mark.long
@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts_are_those_of_the_code_of_the_authors(name):
    counting = ("--config.model.attention_bias=True", f"--config.data.vocabulary_size={AUTHORS_VOCABULARY}")
    config = read(ROWS[name], *counting)
    total = count(config) + TARGET_SPACES * config.model.d_model
    assert round(total / 1e6, 2) == COUNTS[name]


@pytest.mark.parametrize("name", [name for name in COUNTS if "parameters" in ROWS[name].published])
def test_published_counts_are_close_to_the_counts_of_the_code(name):
    assert ROWS[name].published["parameters"] / 1e6 == pytest.approx(COUNTS[name], rel=0.025)


@pytest.mark.parametrize(
    ("name", "features"),
    [
        ("base", 64),
        ("A-h1", 512),
        ("A-h4", 128),
        ("A-h16", 32),
        ("A-h32", 16),
        ("C-d256", 32),
        ("C-d1024", 128),
    ],
)
def test_features_per_head_are_those_of_the_paper(name, features):
    model = read(ROWS[name]).model
    assert model.d_model // model.heads == features
    assert (model.key_features, model.value_features) == (None, None)


def test_row_b_changes_only_the_keys():
    model = read(ROWS["B-dk16"]).model
    assert (model.key_features, model.value_features, model.d_model // model.heads) == (16, None, 64)


def test_rates_positions_and_steps_of_rows_d_e_and_big():
    base = read(ROWS["base"])
    assert (base.model.dropout, base.label_smoothing, base.training.steps) == (0.1, 0.1, 100_000)
    rates = [
        (read(ROWS[f"D-{name}"]).model.dropout, read(ROWS[f"D-{name}"]).label_smoothing)
        for name in ("dropout0.0", "dropout0.2", "smoothing0.0", "smoothing0.2")
    ]
    assert rates == [(0.0, 0.1), (0.2, 0.1), (0.1, 0.0), (0.1, 0.2)]
    assert read(ROWS["E-learned"]).model.positions == "learned"
    big = read(ROWS["big"])
    assert (big.model.dropout, big.model.heads, big.training.steps) == (0.3, 16, 300_000)


def test_divisors_apply_to_every_width_and_depth():
    rows = table3(width_divisor=8, depth_divisor=2, steps=600)
    small = {variant.name: variant.overrides for variant in rows}
    divisors = {
        **dict.fromkeys(("model.d_model", "model.d_ff", "model.key_features"), 8),
        **dict.fromkeys(("model.encoder_layers", "model.decoder_layers"), 2),
    }
    for name, variant in ROWS.items():
        for path, value in variant.overrides.items():
            expected = value // divisors[path] if path in divisors else value
            assert small[name][path] == (1800 if path == "training.steps" else expected), (name, path)


@pytest.mark.long
def test_small_table_differs_only_in_size():
    argv = ["--config=table3_small", "--workdir=none"]
    base = parse(Train, argv).config
    sizes = {"d_model": 512, "d_ff": 2048, "encoder_layers": 6, "decoder_layers": 6}
    assert dataclasses.replace(base.model, **sizes, scan=False) == read(ROWS["base"]).model
