"""Tests of the code of docs/replace_a_part.md and the table of docs/options.md.

test_contracts.py runs the contract of sequence-to-sequence models on the same code.
"""

import dataclasses
import re
import shlex
import sys

import jax
import numpy as np
import pytest

from configs import quickstart
from tests.models.cases import DOCUMENT, DOCUMENTED, PACKAGE, documented
from tests.support.paths import ROOT
from tests.support.tiny import MODEL, make_config, train_run
from tfm import config, models
from tfm.commands.command import parse
from tfm.commands.options import OPTIONS
from tfm.config import info_of
from tfm.models import Transformer, TransformerConfig
from tfm.workdir import runs
from tfm.workdir.runs import parse_config

PADDED = np.array([[5, 6, 7, 0, 0, 0, 0], [8, 9, 10, 11, 0, 0, 0]])


def test_table_of_options_lists_every_choice_of_each_field():
    text = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+ \| (`[^|]+) \|", text, re.MULTILINE)
    choices = {field.name: info_of(field).choices for field in dataclasses.fields(TransformerConfig)}
    named = {name for row in rows[1:] for name in re.findall(r"`(\w+)`", row)}
    for name in named:
        words = {word for row in rows if f"`{name}`" in row for word in re.findall(r"\w+", row)}
        assert {*choices[name]} - {None} <= words, name


def test_every_documented_model_is_tested():
    classes = {name for name, x in documented().items() if isinstance(x, type) and issubclass(x, Transformer)}
    assert classes == {"Transformer", *DOCUMENTED}


def test_one_hot_positions_of_the_page_equal_a_learned_table():
    positions = np.array([[0, 2, 1], [4, 4, 3]])
    found, variables = documented()["OneHot"](5, 4).init_with_output(jax.random.key(0), positions)
    np.testing.assert_array_equal(found, variables["params"]["rows"]["kernel"][positions])


@pytest.fixture
def my_lab(tmp_path, monkeypatch):
    """Writes the first module of the page into a package on Python's path."""
    (tmp_path / "my_lab").mkdir()
    (tmp_path / "my_lab" / "variant.py").write_text(PACKAGE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(config.names, "allowed_modules", set())
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_lab"]:
        del sys.modules[name]


@pytest.mark.usefixtures("my_lab")
def test_command_of_the_page_keeps_the_other_fields_of_the_model(caplog):
    (arguments,) = re.findall(r"^tfm train (.*)$", DOCUMENT, re.MULTILINE)
    found = parse(OPTIONS["train"], shlex.split(arguments)).config
    expected = parse_config(quickstart.get_config())
    model = dataclasses.replace(expected.model, name="my_lab.variant", positions="none")
    assert found == dataclasses.replace(expected, model=model)
    assert expected.model.d_model != TransformerConfig().d_model
    assert not caplog.messages


@pytest.mark.long
@pytest.mark.usefixtures("my_lab")
def test_model_of_16_lines_in_another_package_trains(corpus, tmp_path):
    lines = [line for line in PACKAGE.splitlines() if line and not line.startswith(("#", "import", "from"))]
    assert len(lines) <= 16
    config.allow_modules(["my_lab"])
    settings = make_config(corpus, steps=30, warmup_steps=10, checkpoint_every=50, eval_every=50, log_every=5)
    settings = dataclasses.replace(settings, model=dataclasses.replace(MODEL, name="my_lab.variant"))
    losses = [row["train/loss"] for row in train_run(settings, tmp_path / "run") if "train/loss" in row]
    assert losses[-1] < 0.9 * losses[0]
    assert isinstance(runs.load(str(tmp_path / "run")).task.model, models.find("my_lab.variant").Model)
