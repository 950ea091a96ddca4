"""An export that the first version wrote still opens and scores, and its config gives the same losses.

`tests/fixtures/first_version.zip` was made by the code of commit fa99169. It contains the corpus, a run of 6
steps, its export, and what that code computed, for example the losses of a run of 12 steps. Fields of its
config have had other names since, and its checkpoints another form.
"""

import json
import zipfile

import numpy as np
import pytest

import tfm
from tests.support.paths import ROOT
from tfm import config as configs
from tfm.commands import train
from tfm.training.reporting import read_metrics
from tfm.workdir import runs


@pytest.fixture
def expected(tmp_path, monkeypatch):
    """What the first version computed; its files are in the current folder."""
    with zipfile.ZipFile(ROOT / "tests" / "fixtures" / "first_version.zip") as file:
        file.extractall(tmp_path)
    monkeypatch.chdir(tmp_path)
    return json.loads((tmp_path / "expected.json").read_text())


@pytest.mark.long
def test_an_export_of_the_first_version_scores(expected):
    translator = tfm.Translator.load("export")
    assert translator.run.steps == expected["steps"]
    found = translator.score(expected["sources"], expected["targets"])
    for scores, wanted in zip(found, expected["scores"], strict=True):
        np.testing.assert_allclose(scores, wanted, atol=1e-5)


@pytest.mark.long
def test_first_version_fields_have_new_names(expected, caplog):
    configs.warn_once.cache_clear()
    found = runs.read_config("run")
    assert found.training.optimizer.b1 == 0.8
    assert found.model.activation == "gelu_tanh"
    assert "config.training.adam_b1 is read as optimizer.b1" in caplog.text


@pytest.mark.long
def test_a_run_has_the_losses_of_the_first_version(expected):
    train.main(["--config=run/config.json", "--workdir=new", "--config.training.steps=12"])
    rows = {str(row["step"]): row["train/loss"] for row in read_metrics("new") if "train/loss" in row}
    assert rows.keys() == expected["loss"].keys()
    for step, loss in expected["loss"].items():
        np.testing.assert_allclose(rows[step], loss, rtol=1e-5)
