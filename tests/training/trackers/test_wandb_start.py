"""Tests of the arguments with which a run of Weights & Biases starts, without the package."""

import shutil
import sys
from typing import Any

import pytest

from tfm.io import local_copies
from tfm.training.trackers.run_ids import read_id
from tfm.training.trackers.wandb import STEP, WandbTracker

VARIABLES = ("WANDB_MODE", "WANDB_PROJECT", "WANDB_NAME", "WANDB_DIR", "WANDB_RUN_ID", "WANDB_RESUME")


class RecordedWandb:
    """A replacement of the package and of its run, which records the arguments of the start."""

    Settings = dict

    def __init__(self) -> None:
        self.arguments: dict[str, Any] = {}
        self.metrics: dict[str, str] = {}

    def init(self, **arguments: Any) -> "RecordedWandb":
        self.arguments = arguments
        return self

    def define_metric(self, name: str, step_metric: str) -> None:
        self.metrics[name] = step_metric


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Returns a function that starts the tracker of a run folder with environment variables."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def call(folder: str = "my run", **variables: str) -> RecordedWandb:
        wandb = RecordedWandb()
        monkeypatch.setitem(sys.modules, "wandb", wandb)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        WandbTracker(str(tmp_path / folder))
        return wandb

    (tmp_path / "my run").mkdir()
    return call


def test_run_is_named_after_its_folder(start, tmp_path):
    arguments = start().arguments
    found = {name: arguments[name] for name in ("project", "name", "dir", "settings")}
    expected = {"project": "tfm", "name": "my run", "dir": str(tmp_path / "my run")}
    assert found == expected | {"settings": {"console": "off"}}


def test_environment_variables_take_precedence(start):
    arguments = start(WANDB_PROJECT="mine", WANDB_NAME="first", WANDB_DIR="elsewhere").arguments
    assert [arguments[name] for name in ("project", "name", "dir")] == [None] * 3


@pytest.mark.parametrize(("mode", "resume"), [("online", "allow"), ("offline", None)])
def test_resumed_run_keeps_its_id_and_resumes_only_online(start, mode, resume):
    first, second = (start(WANDB_MODE=mode).arguments for _ in range(2))
    assert first["id"] == second["id"]
    assert (first["resume"], second["resume"]) == (None, resume)


def test_copied_run_has_its_own_id_and_a_moved_run_keeps_its_id(start, tmp_path, caplog):
    caplog.set_level("INFO")
    original = start().arguments["id"]
    shutil.copytree(tmp_path / "my run", tmp_path / "copy")
    copied, again = (start("copy").arguments["id"] for _ in range(2))
    assert copied == again != original
    assert str(tmp_path / "my run") in caplog.text
    assert start().arguments["id"] == original
    (tmp_path / "my run").rename(tmp_path / "moved")
    (tmp_path / "my run").mkdir()  # a new run of the same name
    assert start().arguments["id"] != original
    assert start("moved").arguments["id"] == original


def test_working_copies_of_one_url_have_one_id_and_a_download_has_its_own(start, tmp_path):
    url = "gs://bucket/my run"
    local_copies.show_as(str(tmp_path / "my run"), url)
    original = start().arguments["id"]
    for name in ("other host", "download"):
        shutil.copytree(tmp_path / "my run", tmp_path / name)
    local_copies.show_as(str(tmp_path / "other host"), url)
    assert start("other host").arguments["id"] == original
    assert start("download").arguments["id"] != original


@pytest.mark.parametrize(("mode", "resume"), [("online", "allow"), ("offline", None)])
def test_id_of_the_environment_takes_precedence_and_is_kept(start, mode, resume, tmp_path, monkeypatch):
    """The run of this id may exist. Without resume="allow", Weights & Biases would overwrite it."""
    own = start(WANDB_MODE=mode).arguments["id"]
    arguments = start(WANDB_MODE=mode, WANDB_RUN_ID="mine").arguments
    assert (arguments["id"], arguments["resume"]) == ("mine", resume)
    assert read_id(str(tmp_path / "my run"), "wandb") == "mine" != own
    monkeypatch.delenv("WANDB_RUN_ID")
    assert start().arguments["id"] == "mine"


def test_resume_of_the_environment_takes_precedence(start):
    arguments = start(WANDB_RUN_ID="mine", WANDB_RESUME="must").arguments
    assert (arguments["id"], arguments["resume"]) == ("mine", None)


def test_charts_have_the_logged_step_as_their_axis(start):
    assert start().metrics == dict.fromkeys(("train/*", "validation/*", "samples/*"), STEP)
