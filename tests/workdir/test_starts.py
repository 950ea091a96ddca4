"""Tests of the record of the starts of a run, from which the run can be repeated exactly."""

import dataclasses
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from tests.support import tiny_regression
from tests.support.comparison import assert_trees_equal
from tests.support.paths import ROOT
from tests.support.tiny import make_config, train_run
from tests.support.workdirs import write_start
from tfm import config as configs
from tfm import tasks
from tfm.errors import UserError
from tfm.tasks.translation.task import Config
from tfm.training.config import TrainingConfig
from tfm.workdir import runs
from tfm.workdir.replay import replay_step
from tfm.workdir.starts import (
    changed_fields,
    check_same_data,
    code_state,
    last_start,
    open_same_data,
    package_versions,
    record_start,
    warn_of_changed_split,
)


def starts(workdir):
    return [json.loads(line) for line in (workdir / "starts.jsonl").read_text().splitlines()]


@pytest.mark.long
def test_only_starts_that_train_are_recorded(tmp_path):
    for steps in (1, 1, 2):
        train_run(tiny_regression.make_config(steps=steps, warmup_steps=1), tmp_path)
    lines = starts(tmp_path)
    assert [line["step"] for line in lines] == [0, 1]
    assert [line["config"]["training"]["steps"] for line in lines] == [1, 2]


def test_record_has_everything_needed_to_repeat_the_run(corpus, tiny_run):
    (line,) = starts(tiny_run)
    assert configs.from_mapping(Config, line["config"]) == make_config(corpus)
    assert line["versions"]["python"] == platform.python_version()
    assert line["versions"]["jax"] == jax.__version__
    assert line["versions"]["numpy"] == np.__version__
    assert line["processes"] == 1
    assert line["devices"] == [jax.devices()[0].device_kind]
    assert line["command"] == sys.orig_argv
    vocabulary = (tiny_run / "vocabulary.model").read_bytes()
    assert line["data"]["vocabulary"] == hashlib.sha256(vocabulary).hexdigest()
    sides = [hashlib.sha256((corpus / f"val.{side}").read_bytes()).hexdigest() for side in ("en", "de")]
    assert line["data"]["validation"] == f"text-{sides[0]}-{sides[1]}"


@pytest.mark.long
def test_run_repeated_from_its_record_is_identical(regression_run, tmp_path):
    (line,) = starts(regression_run)
    train_run(configs.from_mapping(tiny_regression.Config, line["config"]), tmp_path)
    pairs = [runs.load(str(folder), checkpoint="last").params for folder in (regression_run, tmp_path)]
    assert_trees_equal(*pairs)
    assert starts(tmp_path)[0]["data"] == line["data"]


@pytest.mark.long
def test_resuming_with_changed_training_text_is_an_error(corpus, tmp_path, caplog):
    own = shutil.copytree(corpus, tmp_path / "corpus")
    train_run(dataclasses.replace(make_config(own, steps=1), validation_sentences=0), tmp_path / "run")
    for language in ("en", "de"):
        lines = (own / f"train.{language}").read_text().splitlines(keepends=True)
        (own / f"train.{language}").write_text("".join(lines[::-1]))
    with pytest.raises(UserError, match=rf"train .*{tmp_path / 'run'}"):
        train_run(dataclasses.replace(make_config(own, steps=2), validation_sentences=0), tmp_path / "run")
    assert len(starts(tmp_path / "run")) == 1
    config = dataclasses.replace(make_config(own, steps=1), validation_sentences=0)
    task = tasks.find(config.task).create(config, str(tmp_path / "run"), new=False)
    with pytest.raises(UserError, match=rf"train .*{tmp_path / 'run'}"):
        replay_step(task, config.training, str(tmp_path / "run"), 1)
    with pytest.raises(UserError, match=rf"train .*{tmp_path / 'run'}"):
        open_same_data(task, str(tmp_path / "run"), step=1)


def test_changed_split_gives_a_warning(tiny_run, corpus, tmp_path, caplog):
    config = runs.open_folder(str(tiny_run)).config
    warn_of_changed_split(config, str(tiny_run), "validation")
    warn_of_changed_split(config, str(tiny_run), "test")  # is not recorded
    assert not caplog.text
    own = shutil.copytree(corpus, tmp_path / "corpus")
    (own / "val.de").write_text((own / "val.de").read_text().replace("rot", "blau"))
    other = dataclasses.replace(config, data=dataclasses.replace(config.data, directory=str(own)))
    warn_of_changed_split(other, str(tiny_run), "train")
    assert not caplog.text
    warn_of_changed_split(other, str(tiny_run), "validation")
    assert "content of validation has changed" in caplog.text


def record(workdir, step, config=Config(), **data):  # noqa: B008, it is frozen
    """Checks and records a start of a run with data of these hashes."""
    hashes = {"validation": "v", "train": "t"} | data
    check_same_data(str(workdir), hashes, step)
    record_start(str(workdir), config, hashes, step)


def test_changed_validation_data_gives_one_warning_and_changed_training_data_is_an_error(tmp_path, caplog):
    record(tmp_path, 0)
    with open(tmp_path / "starts.jsonl", "a") as file:
        file.write('{"time": "2026-01-01 00')
    record(tmp_path, 1_234, validation="w")
    assert "content of validation has" in caplog.text
    assert "step 1,234" in caplog.text
    caplog.clear()
    record(tmp_path, 1_300, validation="w")
    assert not caplog.text
    with pytest.raises(UserError, match="of train has"):
        record(tmp_path, 1_300, train="u", validation="w")
    record(tmp_path, 1_300)
    assert "content of validation has" in caplog.text
    assert json.loads((tmp_path / "starts.jsonl").read_text().splitlines()[-1])["step"] == 1_300


def test_line_of_the_record_that_a_kill_has_cut_is_skipped(tmp_path):
    record(tmp_path, 3)
    path = tmp_path / "starts.jsonl"
    line = path.read_text()
    path.write_text(line + line[:-9].replace('"step": 3', '"step": 4'))
    assert last_start(str(tmp_path))["step"] == 3


def test_start_at_step_0_may_have_any_data(tmp_path, caplog):
    """When the run resumes, its data are compared with this start, not with earlier starts."""
    record(tmp_path, 0)
    record(tmp_path, 50)
    record(tmp_path, 0, train="u")
    record(tmp_path, 20, train="u")
    assert not caplog.text


def test_changed_random_numbers_of_jax_give_a_warning(tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    monkeypatch.setenv("JAX_API_KEY", "secret")
    record(tmp_path, 0)
    with jax.default_prng_impl("rbg"):
        record(tmp_path, 1_234)
    assert "(jax_default_prng_impl was 'threefry2x32' and is now 'rbg'). From step 1,234 on" in caplog.text
    caplog.clear()
    assert starts(tmp_path)[1]["jax"]["jax_default_prng_impl"] == "rbg"
    environment = starts(tmp_path)[1]["environment"]
    assert environment["XLA_FLAGS"] == "--xla_cpu_multi_thread_eigen=false"
    assert "JAX_API_KEY" not in environment
    with jax.default_prng_impl("rbg"):
        record(tmp_path, 1_300)
    record(tmp_path, 0)  # a run that begins again may differ
    assert not caplog.text


@pytest.mark.long
def test_changes_of_the_config_are_recorded(tmp_path):
    """The record has the old and the new value of each field that differs from the previous start."""
    record(tmp_path, 0)
    longer = Config(training=TrainingConfig(steps=7, seed=1), label_smoothing=0.0)
    record(tmp_path, 5, longer)
    record(tmp_path, 6, longer)
    with open(tmp_path / "starts.jsonl", "a") as file:
        file.write('{"data": 5}\n[]\n{"cut')
    record(tmp_path, 0)
    changes = {"label_smoothing": [0.1, 0.0], "training.seed": [0, 1], "training.steps": [100_000, 7]}
    back = {path: [new, old] for path, (old, new) in changes.items()}
    lines = (tmp_path / "starts.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in lines if line.startswith('{"time')]
    assert [line["changed"] for line in lines] == [{}, changes, {}, back]


def git(folder, *arguments):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)


def test_code_state_has_the_commit_and_the_changed_files(tmp_path):
    assert code_state(str(tmp_path)) == {}
    git(tmp_path, "init")
    assert code_state(str(tmp_path)) == {}  # no commit yet
    (tmp_path / "a.py").write_text("1")
    git(tmp_path, "add", "a.py")
    git(tmp_path, "commit", "-m", "first")
    clean = code_state(str(tmp_path))
    assert len(clean["commit"]) == 40
    assert clean["changed"] == []
    (tmp_path / "a.py").write_text("2")
    (tmp_path / "b.py").write_text("3")
    assert code_state(str(tmp_path)) == clean | {"changed": [" M a.py", "?? b.py"]}
    (tmp_path / "packages").mkdir()
    assert code_state(str(tmp_path / "packages")) == {}


def test_code_state_leaves_the_index_of_git_alone(tmp_path, monkeypatch):
    """`git status` writes the index if the time of a file has changed, and a kill leaves its lock behind."""
    monkeypatch.delenv("GIT_OPTIONAL_LOCKS", raising=False)
    git(tmp_path, "init")
    (tmp_path / "a.py").write_text("1")
    git(tmp_path, "add", "a.py")
    git(tmp_path, "commit", "-m", "first")
    os.utime(tmp_path / "a.py", (1, 1))
    before = (tmp_path / ".git" / "index").read_bytes()
    assert code_state(str(tmp_path))["changed"] == []
    assert (tmp_path / ".git" / "index").read_bytes() == before


def test_code_state_is_empty_without_git(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert code_state(str(ROOT)) == {}


@pytest.mark.long
def test_failed_installation_is_not_listed_as_a_package(tmp_path, monkeypatch):
    before = package_versions()
    (tmp_path / "broken-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert package_versions.__wrapped__() == before


def test_last_start_of_a_step_is_the_newest_start_before_it(tmp_path):
    for step in (0, 4, 9):
        write_start(tmp_path, tiny_regression.Config(), step=step, host=str(step))
    made_by = {step: last_start(str(tmp_path), step)["host"] for step in (1, 4, 5, 9, 10)}
    assert made_by == {1: "0", 4: "0", 5: "4", 9: "4", 10: "9"}
    assert last_start(str(tmp_path))["host"] == "9"


def test_changed_fields_include_removed_and_added_fields():
    old, new = {"a": {"b": 1, "gone": 2, "same": (3,)}, "c": 4}, {"a": {"b": 1.5, "same": [3]}, "added": 5}
    assert changed_fields(old, new) == {
        "a.b": [1, 1.5],
        "a.gone": [2, None],
        "added": [None, 5],
        "c": [4, None],
    }


def test_data_of_a_recomputed_step_are_compared_with_the_start_that_made_it(tmp_path):
    for step, fingerprint in ((0, "a"), (4, "b")):
        write_start(tmp_path, tiny_regression.Config(), {"train": fingerprint}, step=step)
    check_same_data(str(tmp_path), {"train": "a"}, 3, before=3)
    with pytest.raises(UserError, match="content of train has changed"):
        check_same_data(str(tmp_path), {"train": "b"}, 3, before=3)
