"""A work directory and an export that the first version wrote still open, score and resume.

`tests/fixtures/first_version.zip` was made by the code of commit fa99169: the corpus; a run of 6 steps; its
export; and what that code computed, the losses of the unbroken run of 12 steps among it. Fields of its config
have had other names since.
"""

import json
import zipfile

import numpy as np
import pytest

import tfm
from tests.support.paths import ROOT
from tfm import config as configs
from tfm.commands import evaluate, train
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
@pytest.mark.parametrize("folder", ["run", "export"])
def test_weights_of_the_first_version_score(folder, expected):
    translator = tfm.Translator.load(folder)
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
    assert evaluate.main(["--workdir=run", "--samples=0"]) is None


@pytest.mark.long
def test_a_run_of_the_first_version_resumes(expected):
    train.main(["--config=run/config.json", "--workdir=run", "--config.training.steps=12"])
    rows = {str(row["step"]): row["train/loss"] for row in read_metrics("run") if "train/loss" in row}
    assert rows.keys() == expected["loss"].keys()
    for step, loss in expected["loss"].items():
        np.testing.assert_allclose(rows[step], loss, rtol=1e-5)
