"""Tests of the table of systems: sizes, files, configs, scores and the page on the family."""

import importlib
import pkgutil
import re

import jax
import jax.numpy as jnp
import pytest

from tests.support.paths import ROOT
from tfm import models
from tfm.commands.systems import count_lines, read_systems
from tfm.io.markdown import format_cell

SYSTEMS = {row["system"].partition(" (")[0]: row for row in read_systems()}
TOKENS = jnp.zeros((1, 3), int)
IMAGE = jnp.zeros((1, 224, 224, 3))
# System: model, number of tokens, changed fields and inputs of the published size.
PUBLISHED = {
    "Feed-forward language model": ("feed_forward_lm", 16_383, {}, [TOKENS]),
    "LSTM language model": ("lstm_lm", 10_000, {}, [TOKENS]),
    "Recurrent translation with attention": ("rnn_seq2seq", 30_000, {}, [TOKENS, TOKENS]),
    "ConvS2S": ("conv_s2s", 40_000, {}, [TOKENS, TOKENS]),
    "Transformer": ("transformer", 37_000, {}, [TOKENS, TOKENS]),
    "T-DMCA": ("compressed_lm", 32_000, {}, [TOKENS]),
    "Decoder-only Transformer": (
        "decoder_lm",
        50_257,
        {"positions": "learned", "max_positions": 1024, "attention_bias": True},
        [TOKENS],
    ),
    "Universal Transformer": ("universal", 37_000, {}, [TOKENS, TOKENS]),
    "Vision Transformer": ("vit", None, {}, [IMAGE]),
    "DETR": ("detr", None, {}, [IMAGE]),
}


@pytest.mark.parametrize("system", PUBLISHED)
def test_parameters_are_those_of_the_published_size(system):
    name, vocabulary, fields, inputs = PUBLISHED[system]
    module = models.find(name)
    sizes = [] if vocabulary is None else [vocabulary]
    model = module.Model(module.Config(**fields), *sizes)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), *inputs, train=False))
    count = sum(leaf.size for leaf in jax.tree.leaves(shapes["params"]))
    assert SYSTEMS[system]["parameters"] == f"{count:,}"


@pytest.mark.parametrize("system", SYSTEMS)
def test_files_and_configs_exist(system):
    row = SYSTEMS[system]
    assert all((ROOT / path).exists() for path in row["files"].split())
    name, _, variant = row["config"].partition(":")
    get_config = importlib.import_module(f"tfm.configs.{name}").get_config
    config = get_config(*[variant] if variant else [])
    assert int(row["lines"].replace(",", "")) > 50
    if "tfm/models" in row["files"]:
        assert re.search(rf"tfm/models/{config.model.name}\b", row["files"])


def test_every_model_belongs_to_a_system():
    files = " ".join(row["files"] for row in SYSTEMS.values())
    modules = {module.name for module in pkgutil.iter_modules(models.__path__)}
    missing = {name for name in modules if not re.search(rf"tfm/models/{name}\b", files)}
    assert missing == {"resnet"}  # the backbone of DETR


def test_systems_are_in_the_order_of_their_years():
    years = [int(row["year"]) for row in SYSTEMS.values()]
    assert years == sorted(years)


@pytest.mark.parametrize("system", SYSTEMS)
def test_scores_are_those_of_the_results(system):
    row = SYSTEMS[system]
    score = row["score"].split()[0]
    page = (ROOT / "docs" / "results.md").read_text()
    assert re.search(rf"(?<![\d.]){re.escape(score)}(?![\d.]*\d)", page), f"the results do not have {score}"


@pytest.mark.parametrize("system", SYSTEMS)
def test_page_on_the_family_has_the_row(system):
    row = SYSTEMS[system]
    page = (ROOT / "docs" / "family.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith(f"| [{format_cell(row['system'])}]")]
    for name in ("year", "parameters", "score", "seconds", "change"):
        assert f"| {format_cell(row[name])} |" in line
    lines = int(line.split("|")[-2].replace(",", ""))
    assert lines == pytest.approx(int(row["lines"].replace(",", "")), rel=0.1)


def test_lines_are_counted_without_comments_docstrings_and_blank_lines():
    source = (
        '"""A module."""\n\nx = 1  # a comment\n# another\n\n\ndef f():\n    """Returns x."""\n    return x\n'
    )
    assert count_lines(source) == 3
    assert count_lines("def f(): return '''a\nb'''") == 2


def test_command_prints_a_line_for_each_system(capsys):
    main = importlib.import_module("tfm.commands.systems").main
    main([])
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(SYSTEMS)
