"""Tests of docs/interpret.md: its code runs, its assertions hold and its table of points is complete."""

import re

import jax.numpy as jnp
import pytest

from tests.support.pages import BLOCK, run_block
from tests.support.paths import ROOT
from tfm import interpret
from tfm.models import Transformer, TransformerConfig

TEXT = (ROOT / "docs" / "interpret.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_code_of_the_page_runs():
    blocks = [block for block in BLOCK.findall(TEXT) if "runs/quickstart" not in block[0]]  # a trained run
    assert len(blocks) == 9
    names = {}
    for code, _ in blocks:
        run_block(code, "docs/interpret.md", names)
    assert names["each"].shape == (4, 2, 3, 20)
    assert len(names["hypotheses"]) == 2


@pytest.mark.long
def test_table_of_points_is_complete():
    config = TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=8, d_ff=8, heads=2)
    token = jnp.ones((1, 1), jnp.int32)
    points = interpret.list_points(Transformer(config, 5), token, token)
    rows = re.findall(r"^\| (`.*?) \| ([A-Z, ]+) \|", TEXT, re.MULTILINE)
    found = {}
    for cell, axes in rows:
        names = [name.strip("`") for name in cell.split(", ")]
        prefix = names[0].rpartition(".")[0]
        full = [prefix + name if name.startswith(".") else name for name in names]
        found |= dict(zip(full, (axes.split(", ") * len(full))[: len(full)], strict=True))
    assert found.items() <= {name: axes for name, (axes, _) in points.items()}.items()
    parts = {
        re.sub(
            r"(self_attention|cross_attention|feed_forward)", "self_attention", n.rpartition("layers_0.")[2]
        )
        for n in found
    }
    for name in points:
        last = re.sub(
            r"(self_attention|cross_attention|feed_forward)",
            "self_attention",
            name.rpartition("layers_0.")[2],
        )
        assert last.replace("decoder", "encoder") in parts, name
