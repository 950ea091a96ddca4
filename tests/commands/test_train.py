"""Tests of `tfm train`: checks before training, failed starts, pipes and shortened warmups."""

import contextlib
import errno
import re
import shutil
import types
from unittest import mock

import jax
import pytest

from tests.support import tiny_regression
from tests.support.commands import run_command
from tests.support.records import write_record
from tests.support.tiny import make_config, write_config_file, write_corpus
from tfm.commands import list as list_runs
from tfm.commands import progress_bar, train
from tfm.commands.command import parse
from tfm.commands.hosts import join_hosts
from tfm.commands.options import HostOptions, Train
from tfm.data.config import VOCABULARY_FILE
from tfm.errors import UserError
from tfm.io import files
from tfm.tasks import translation
from tfm.training import optimizers
from tfm.workdir import starts


@pytest.mark.parametrize("wanted", [False, True])
def test_training_has_a_progress_bar_on_a_terminal(wanted, monkeypatch, tmp_path):
    monkeypatch.setattr(progress_bar, "is_wanted", lambda: wanted)
    task = types.SimpleNamespace(unit="tokens")
    hooks = train.make_hooks(task, types.SimpleNamespace(profile="", config=make_config(tmp_path)))
    assert [type(hook) for hook in hooks] == [progress_bar.ProgressBar] * wanted


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"coordinator": "nonsense"}, "--coordinator must be HOST:PORT, got 'nonsense'"),
        ({"coordinator": "host:"}, "--coordinator must be HOST:PORT"),
        ({"coordinator": "host:1", "process_id": 2}, "--process_id must be below --processes, got 2 of 2"),
        ({}, "--processes=2 needs --coordinator"),
        ({"coordinator": "host:1", "distributed": True}, "--coordinator or --distributed, got both"),
        ({"distributed": True}, r"does not find the other processes \(coordinator_address should be defined"),
    ],
)
def test_hosts_that_cannot_be_joined_are_errors(flags, message, monkeypatch):
    options = HostOptions(**{"processes": 2} | flags)
    error = ValueError("coordinator_address should be defined.")
    monkeypatch.setattr(jax.distributed, "initialize", mock.Mock(side_effect=error))
    with pytest.raises(UserError, match=message):
        join_hosts(options)


@pytest.mark.parametrize("path", ["~/run", "~"])
def test_work_directory_after_a_tilde_is_an_error(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=rf"--workdir .*'{path}'"):
        train.main(["--config=quickstart", f"--workdir={path}"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--config.training.seed=5"], r"started with another config: training\.seed was 0 and is now 5"),
        (["--allow_change=training.sed"], r"--allow_change: .*did you mean 'training\.seed'"),
        (["--warm_start=x", "--warm_start_map=a"], "TARGET=SOURCE.*'a'"),
        (["--from_step=3"], "--from_step is not for --dry_run"),
        (["--profile=4:7"], "--profile to name steps up to 6.*, got 4:7"),
    ],
)
def test_dry_run_makes_the_checks_of_a_run(flags, message, regression_run):
    flags = [flag.replace("WORKDIR", str(regression_run)) for flag in flags]
    with pytest.raises(UserError, match=message):
        train.main(
            [f"--config={regression_run}/config.json", f"--workdir={regression_run}", "--dry_run", *flags]
        )


@pytest.mark.long
def test_dry_run_uses_the_vocabulary_of_the_run(tiny_run, tmp_path, caplog):
    """The training data would give another vocabulary than the vocabulary of the warm start."""
    write_corpus(tmp_path, [("train", 30), ("val", 16), ("test", 4)])
    config, workdir = write_config_file(tmp_path, make_config(tmp_path, steps=1)), tmp_path / "run"
    arguments = [f"--config={config}", f"--workdir={workdir}"]
    workdir.mkdir()
    shutil.copy(tiny_run / VOCABULARY_FILE, workdir)
    with caplog.at_level("INFO"):
        train.main([*arguments, "--dry_run"])
    assert [path.name for path in workdir.iterdir()] == [VOCABULARY_FILE]
    assert run_command("train", *arguments, f"--warm_start={tiny_run}").code == 0
    with (
        caplog.at_level("INFO"),
        mock.patch.object(translation, "create", wraps=translation.create) as create,
    ):
        train.main([*arguments, "--dry_run"])
        train.main([*arguments, "--dry_run", "--warm_start=runs/deleted"])
    assert "Making a tokenizer" not in caplog.text
    assert create.call_count == 2, "a dry run creates the task more than once"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mesh_tensor": 64}, "mesh_tensor 64"),
        ({"freeze": ("encodr/*",)}, r"training.freeze .*'encodr/\*'"),
        ({"freeze": ("*",)}, "a parameter to train"),
    ],
)
def test_config_is_checked_before_the_vocabulary_is_learned(fields, message, tmp_path, capsys):
    write_corpus(tmp_path)
    config = write_config_file(tmp_path, make_config(tmp_path, **fields))
    with pytest.raises(UserError, match=message):
        train.main([f"--config={config}", f"--workdir={tmp_path / 'runs' / 'a'}"])
    assert not list(tmp_path.rglob(VOCABULARY_FILE))
    with contextlib.suppress(UserError):  # no run may exist
        list_runs.main([str(tmp_path / "runs")])
        assert "not started" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("encodr/*=encoder/*", "matches no parameter of this model, such as"),
        ("encoder/*=encodr/*", "has no such parameter"),
    ],
)
def test_map_of_a_warm_start_is_checked_before_the_data(entry, message, tiny_run, corpus, tmp_path):
    config = write_config_file(tmp_path, make_config(corpus))
    flags = [f"--warm_start={tiny_run}", "--warm_start_map=*=*", f"--warm_start_map={entry}"]
    with pytest.raises(UserError, match=f"'{re.escape(entry)}' takes none.*{message}"):
        train.main([f"--config={config}", f"--workdir={tmp_path / 'new'}", *reversed(flags)])
    assert not (tmp_path / "new").exists()


def break_data(workdir, patch):
    def open_data(_):
        raise UserError("train.tsv is missing")

    patch.setattr(tiny_regression.Regression, "open_data", open_data)
    return "train.tsv"


def break_loss(workdir, patch):
    patch.setattr(tiny_regression, "predict", lambda params, x: params["slope"] @ x)
    return "'loss' does not fit"


def break_metrics(workdir, patch):
    (workdir / "metrics.jsonl").mkdir(parents=True)
    return "metrics.jsonl"


def fill_disk(workdir, patch):
    def append(path, line):
        with files.writing(path):
            raise OSError(errno.ENOSPC, "No space left on device")

    patch.setattr(starts, "append_json_line", append)
    return "starts.jsonl"


@pytest.mark.long
@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("break_start", [break_data, break_loss, break_metrics, fill_disk])
def test_failed_start_leaves_a_run_that_is_not_started(break_start, is_warm, regression_run, tmp_path):
    """The next start may therefore change any field of the config."""
    config, workdir = write_config_file(tmp_path, tiny_regression.make_config()), tmp_path / "runs" / "a"
    arguments = [f"--config={config}", f"--workdir={workdir}"]
    arguments += [f"--warm_start={regression_run}"] * is_warm
    with pytest.MonkeyPatch.context() as patch:
        expected = break_start(workdir, patch)
        result = run_command("train", *arguments)
    assert result.code == 2
    assert expected in result.error
    assert "not started" in run_command("list", workdir.parent).output
    if break_start is break_metrics:
        (workdir / "metrics.jsonl").rmdir()
    if break_start is not fill_disk:
        again = run_command("train", *arguments, "--config.training.seed=7")
        assert again.code == 0, again.error


@pytest.mark.parametrize(
    ("peak", "flags", "warmup", "scale"),
    [
        (None, [], 3, 1.0),
        (None, ["steps=2"], 1, 3**-0.5),
        (None, ["steps=3"], 1, 3**-0.5),
        (None, ["steps=40", "warmup_steps=400"], 400, 1.0),
        (None, ["steps=4"], 3, 1.0),
        (0.5, ["steps=2"], 1, 1.0),
        (None, ["steps=2", "learning_rate_scale=0.7"], 1, 0.7),
    ],
)
def test_fewer_steps_shorten_a_warmup_that_is_too_long(peak, flags, warmup, scale, tmp_path, caplog):
    """The largest learning rate stays the same, and the change is logged."""
    made = tiny_regression.make_config(peak_learning_rate=peak)
    config = write_config_file(tmp_path, made)
    arguments = [f"--config.training.{flag}" for flag in flags]
    with caplog.at_level("INFO", "tfm"):
        training = parse(Train, [f"--config={config}", f"--workdir={tmp_path}", *arguments]).config.training
    assert (training.warmup_steps, training.learning_rate_scale) == (warmup, pytest.approx(scale))
    assert ("warm-up of 3 steps is too long" in caplog.text) == (warmup == 1)
    assert ("training.warmup_steps is now 1" in caplog.text) == (warmup == 1)
    assert ("and training.learning_rate_scale 0.5774." in caplog.text) == (scale == 3**-0.5)
    assert ("learning_rate_scale" in caplog.text) == (scale == 3**-0.5)
    old, new = (optimizers.find_peak(each, 64) for each in (made.training, training))
    assert new == pytest.approx(old) or len(flags) == 2  # the user chose another rate


def test_invalid_number_of_steps_changes_no_warmup(tmp_path, caplog):
    config = write_config_file(tmp_path, tiny_regression.make_config())
    with caplog.at_level("INFO", "tfm"), pytest.raises(UserError, match=r"training\.steps must be from 1 to"):
        parse(Train, [f"--config={config}", f"--workdir={tmp_path}", "--config.training.steps=0"])
    assert not caplog.messages


def test_from_step_without_a_checkpoint_is_an_error_and_begins_no_run(tmp_path):
    workdir = tmp_path / "mistyped"
    with pytest.raises(UserError, match=r"--from_step=3 .*mistyped has none"):
        train.main(["--config=quickstart", f"--workdir={workdir}", "--from_step=3"])
    assert not workdir.exists()


@pytest.mark.long
def test_from_step_resumes_from_the_checkpoint_of_the_step(regression_run, tmp_path):
    run = shutil.copytree(regression_run, tmp_path / "run")
    arguments = (f"--config={run}/config.json", f"--workdir={run}")
    before = (run / "config.json").read_bytes()
    seed = ("--config.training.seed=5", "--allow_change=training.seed")
    refused = run_command("train", *arguments, "--from_step=5", *seed)
    assert (refused.code, "step 5" in refused.error) == (2, True)
    assert (run / "config.json").read_bytes() == before  # a failed start changes nothing
    for name, step in (("old", 2), ("new", 3)):
        write_record(run / f"{name}.x.scores.json", checkpoints=[step])
    assert run_command("train", *arguments, "--from_step=2").code == 0
    assert (run / "checkpoints" / "after_2").is_dir()
    # A record of a later step is about parameters that the run no longer has.
    assert [path.name for path in run.glob("*.scores.json")] == ["old.x.scores.json"]
    assert (run / "checkpoints" / "after_2" / "new.x.scores.json").exists()
    steps, old_steps = (
        {path.name for path in (each / "checkpoints").iterdir()} for each in (run, regression_run)
    )
    assert old_steps <= steps
