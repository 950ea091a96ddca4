"""Tests of the offline files of the Weights & Biases tracker, for a run that is resumed."""

import importlib.util
import json
from unittest import mock

import pytest

from tests.support.processes import wait_until
from tests.support.tracked_regression import SampledRegression, train_tracked
from tests.support.wandb_file import exit_code, has_ended, read_config, read_history
from tfm.training.samples import read_samples
from tfm.training.trackers.run_ids import read_id

pytestmark = [
    pytest.mark.long,
    # Importing the package would take seconds in each worker.
    pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="needs the extra tracking"),
]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """Returns the folder of a run that is stopped after four steps and resumed."""
    workdir = tmp_path_factory.mktemp("wandb") / "my run"
    workdir.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_SILENT", "true")
        patch.delenv("WANDB_PROJECT", raising=False)
        for steps in (4, 6):
            train_tracked(workdir, "wandb", steps=steps, eval_every=2)
    return workdir


@pytest.fixture(scope="module")
def files(workdir):
    """Returns the files of both starts in order."""
    found = sorted(
        (workdir / "wandb").glob("offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime
    )
    assert len(found) == 2
    # A process of wandb writes the last block after `finish` returns.
    wait_until(lambda: all(map(has_ended, found)), "the records of the end")
    return found


def test_resumed_run_keeps_its_first_id(workdir, files):
    assert {path.stem for path in files} == {f"run-{read_id(str(workdir), 'wandb')}"}


def test_failed_run_is_marked_as_failed(tmp_path, monkeypatch, files):
    assert [exit_code(path) for path in files] == [0, 0]
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(SampledRegression, "evaluate", mock.Mock(side_effect=RuntimeError))
    with pytest.raises(RuntimeError):
        train_tracked(tmp_path, "wandb")
    (path,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    wait_until(lambda: has_ended(path), "the record of the end")
    assert exit_code(path) == 1


def test_config_is_logged_at_each_start(files):
    configs = list(map(read_config, files))
    assert [each["training"]["steps"] for each in configs] == [4, 6]
    assert configs[0]["model"]["d_model"] == 4


def test_scalars_have_their_steps(workdir, files):
    history = [row for path in files for row in read_history(path)]
    assert [row["step"] for row in history if "train/loss" in row] == [4, 6]
    assert [row["step"] for row in history if "validation/score" in row] == [2, 4, 6]
    with open(workdir / "metrics.jsonl", encoding="utf-8") as file:
        logged = [row["train/loss"] for row in map(json.loads, file) if "train/loss" in row]
    assert [row["train/loss"] for row in history if "train/loss" in row] == logged


def test_samples_and_pictures_are_logged(workdir, files):
    history = [row for path in files for row in read_history(path)]
    tables = [path for each in files for path in each.parent.glob("files/media/table/samples/*.json")]
    assert [row["step"] for row in history if "samples/slope" in row or "samples/slope/path" in row] == [
        2,
        4,
        6,
    ]
    found = sorted(json.loads(path.read_text())["data"] for path in tables)
    assert found == sorted([[*row.values()] for row in each.rows] for each in read_samples(str(workdir)))
    pictures = {
        path.read_bytes() for each in files for path in each.parent.glob("files/media/images/samples/*")
    }
    assert pictures == {path.read_bytes() for path in (workdir / "samples").iterdir()}
