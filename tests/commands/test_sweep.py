"""Tests of `tfm sweep`: variants, plans, mistakes, and a complete sweep of a small task."""

import contextlib
import io
import signal
import subprocess
import sys

import pytest

from tests.support.paths import ROOT
from tests.support.processes import finish, wait_until
from tfm.checkpoints.store import list_steps
from tfm.commands import config_files, sweep
from tfm.commands.command import parse
from tfm.commands.options import Train
from tfm.errors import UserError
from tfm.io.lock import find_holder
from tfm.io.remote import RemoteFolder

CONFIG = '''
"""Fits a line, by two optimizers."""
from tests.support.tiny_regression import Config
from tfm.config import to_config_dict
from tfm.sweep import Variant
from tfm.training.config import TrainingConfig


def get_config():
    training = TrainingConfig(
        steps=8, warmup_steps=2, peak_learning_rate=0.1, log_every=2, eval_every=4, checkpoint_every=4
    )
    return to_config_dict(Config(training=training))


def get_variants():
    yield Variant("adam", {}, {"error": 0.25, "parameters": 5})
    yield Variant("sgd", {"training.optimizer.name": "sgd", "model.noise": 0.5})
'''


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Returns the path of a config file with variants."""
    path = tmp_path_factory.mktemp("config") / "own.py"
    path.write_text(CONFIG)
    return path


def read(*argv):
    return parse(Train, [*argv, "--workdir=none"]).config


def test_variant_may_be_used_as_a_config(path):
    chosen = read(f"--config={path}:sgd")
    assert (chosen.training.optimizer.name, chosen.model.noise) == ("sgd", 0.5)
    assert read(f"--config={path}").model.noise == 0.1


def test_flags_take_precedence_over_a_variant(path):
    assert read("--config.model.noise=0.25", f"--config={path}:sgd").model.noise == 0.25


def test_shipped_config_has_variants_by_name():
    assert read("--config=table3:big").model.d_model == 1024


def test_error_for_an_unknown_variant_suggests_the_nearest(path):
    with pytest.raises(UserError, match=r"'sgdd'.*'sgd'"):
        read(f"--config={path}:sgdd")
    with pytest.raises(UserError, match=r"'zzz'.*adam, sgd"):
        read(f"--config={path}:zzz")


def test_file_with_a_colon_in_its_name_is_a_file(path):
    other = path.with_name("own:sgd")
    other.write_text("{}")
    assert config_files.split_variant(str(other)) == (str(other), "")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "Expected a function get_variants"),
        ("def get_variants():\n    return 1 / 0\n", "line 2: ZeroDivisionError"),
        ("def get_variants():\n    yield 1 / 0\n", "line 2: ZeroDivisionError"),
        ("def get_variants():\n    return 3\n", "Expected a function get_variants"),
    ],
)
def test_file_without_variants_is_an_error(tmp_path, content, message):
    (tmp_path / "bad.py").write_text(content)
    with pytest.raises(UserError, match=message):
        config_files.read_variants(str(tmp_path / "bad.py"))


def test_dry_run_prints_the_plan_and_starts_nothing(path, tmp_path, capsys):
    sweep.main([str(path), f"--workdir={tmp_path / 'out'}", "--seeds=2", "--dry_run"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["adam", "0/2"], ["sgd", "0/2"]]
    assert "training.optimizer.name=sgd" in lines[2]
    assert not (tmp_path / "out").exists()


def test_error_names_all_invalid_variants_once(tmp_path):
    variants = 'Variant("a", {"model.noize": 1}), Variant("b"), Variant("c", {"model.noise": 7})'
    (tmp_path / "bad.py").write_text(CONFIG + f"\n\ndef get_variants():\n    return [{variants}]\n")
    with pytest.raises(UserError) as error:
        sweep.main(["--config", str(tmp_path / "bad.py"), f"--workdir={tmp_path}", "--dry_run", "--seeds=2"])
    assert str(error.value).count("Variant") == 2  # the error names a variant once for all seeds
    assert "Variant a: config.model.noize does not exist; did you mean 'noise'" in str(error.value)
    assert "Variant c: config.model.noise" in str(error.value)
    assert "Variant b" not in str(error.value)


def test_pattern_without_a_variant_is_an_error(path, tmp_path):
    with pytest.raises(UserError, match=r"--only.*adam, sgd"):
        sweep.main([str(path), f"--workdir={tmp_path}", "--only=C-*", "--dry_run"])


def test_variants_are_selected_by_the_flag_only(path, tmp_path, capsys):
    with pytest.raises(UserError, match="--only"):
        sweep.main([f"{path}:sgd", f"--workdir={tmp_path}", "--dry_run"])
    sweep.main([str(path), f"--workdir={tmp_path}", "--only=s*", "--dry_run"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:2]] == ["sgd"]


@pytest.fixture(scope="module")
def finished(path, tmp_path_factory):
    """Runs a sweep of two variants. Returns (working directory, arguments, printed table)."""
    workdir = tmp_path_factory.mktemp("sweep") / "out"
    command = [str(path), f"--workdir={workdir}", "--seeds=1", "--config.training.seed=7", "--jobs=2"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        sweep.main(command)
    return workdir, command, printed.getvalue()


def read_log(workdir):
    return (workdir / "sgd" / "seed_7" / "log.txt").read_text()


@pytest.mark.long
def test_table_of_a_sweep_has_a_row_for_each_variant(finished):
    _, _, table = finished
    assert table.startswith("Split validation, last checkpoint.\n\n| variant")
    assert [line.split(" | ")[0] for line in table.splitlines()[4:]] == ["| adam", "| sgd"]


@pytest.mark.long
def test_sweep_in_a_store_goes_on_on_another_machine(finished, tmp_path, monkeypatch, capsys):
    """The store is a folder with the protocol file://."""
    _, command, table = finished
    there = [f"--workdir=file://{tmp_path}/store" if "--workdir" in each else each for each in command]
    for machine in ("one", "two"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / machine))
        sweep.main(there)
        assert capsys.readouterr().out == table
    log = RemoteFolder(f"file://{tmp_path}/store").read("sgd/seed_7/log.txt").decode()
    assert log.count("First step finished") == 1


@pytest.mark.long
def test_same_command_prints_and_writes_the_same_table_without_training(finished, capsys):
    workdir, command, table = finished
    log = read_log(workdir)
    sweep.main(command)
    assert read_log(workdir) == log
    assert capsys.readouterr().out == table == (workdir / "table.md").read_text()


CHANGED_RATE = "training.peak_learning_rate was 0.1 and is now 0.3"


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            ["--config.training.peak_learning_rate=0.3"],
            rf"adam seed 7 \({CHANGED_RATE}\), sgd seed 7 \({CHANGED_RATE}\)",
            id="other config",
        ),
        pytest.param(  # the table would still contain sgd
            ["--only=adam", "--config.training.peak_learning_rate=0.3"],
            r"with other configs than the planned ones: .*sgd seed 7 \(training",
            id="other config of a variant",
        ),
        pytest.param(  # no run has finished 9 steps, so no result shows the other rate
            ["--config.training.steps=9", "--config.training.peak_learning_rate=0.3"],
            rf"seed_7 was started with .*{CHANGED_RATE} \(tfm train --allow_change=training\.peak",
            id="other config of runs that are not finished",
        ),
        pytest.param(["--score=eror"], r"no score 'eror'.*'error'", id="unknown score"),
    ],
)
def test_argument_that_does_not_fit_the_finished_runs_is_an_error(arguments, message, finished):
    workdir, command, _ = finished
    table = (workdir / "table.md").read_text()
    with pytest.raises(UserError, match=message):
        sweep.main([*command, *arguments])
    assert (workdir / "table.md").read_text() == table


@pytest.mark.long
@pytest.mark.parametrize(
    ("argument", "title"),
    [
        ("--split=test", "Split test, last checkpoint."),
        ("--checkpoint=best", "Split validation, best checkpoint."),
    ],
)
def test_finished_runs_are_evaluated_on_another_split_or_checkpoint(argument, title, finished, capsys):
    workdir, command, _ = finished
    log = read_log(workdir)
    sweep.main([*command, argument])
    assert capsys.readouterr().out.startswith(title)
    assert read_log(workdir).startswith(log)  # the evaluation continues the log


@pytest.fixture
def planned_runs(path, tmp_path, monkeypatch):
    """Returns a function that runs the command and returns (name, config, arguments) of planned runs."""

    def call(*arguments):
        plans = []

        def execute_runs(planned, *_):
            plans.extend(planned)
            return []

        monkeypatch.setattr(sweep, "execute_runs", execute_runs)
        sweep.main([*arguments, f"--workdir={tmp_path / 'out'}"])
        return [(run.name, run.config, run.arguments) for run in plans]

    return call


@pytest.mark.parametrize(
    "given", [["--config.model.noise=0.25"], ["--config.model.noise", "0.25"], ["--flagfile={file}"]]
)
def test_field_of_the_command_line_applies_to_all_runs(given, path, tmp_path, planned_runs):
    (tmp_path / "flags").write_text("--config.model.noise=0.25\n")
    arguments = [each.format(file=tmp_path / "flags") for each in given]
    runs = planned_runs(str(path), "--only=adam", "--seeds=2", *arguments)
    assert [name for name, _, _ in runs] == ["adam seed 0", "adam seed 1"]
    for seed, (_, chosen, run_arguments) in enumerate(runs):
        assert (chosen.model.noise, chosen.training.seed) == (0.25, seed)
        assert read(*run_arguments) == chosen


def test_import_flag_reaches_all_runs(path, planned_runs):
    imports = "--import=tests.support.images"
    runs = planned_runs(str(path), "--seeds=2", imports)
    assert [imports in arguments for _, _, arguments in runs] == [True] * 4


def test_field_of_the_command_line_that_a_variant_sets_is_an_error(path, planned_runs):
    with pytest.raises(UserError, match=r"Variant sgd sets model\.noise\b.*--config"):
        planned_runs(str(path), "--config.model.noise=0.25")


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL])
def test_stopped_sweep_leaves_no_process_and_keeps_checkpoints(number, path, tmp_path):
    command = [str(path), f"--workdir={tmp_path}", "--seeds=1", "--only=adam"]
    slow = ["--config.training.steps=100000", "--config.training.log_every=1000"]
    run = tmp_path / "adam" / "seed_0"
    process = subprocess.Popen(
        [sys.executable, "-m", "tfm", "sweep", *command, *slow], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    log = run / "metrics.jsonl"
    wait_until(lambda: log.exists() and log.stat().st_size, "the first line of the log", process)
    process.send_signal(number)
    _, error = finish(process)
    wait_until(lambda: not find_holder(str(run)), "the end of the training")
    assert list_steps(str(run / "checkpoints"))[-1] < 100_000
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    if number != signal.SIGKILL:
        assert "0 runs are finished; the same command runs the rest" in error


def test_error_in_an_early_table_leaves_the_other_runs(path, tmp_path, monkeypatch, caplog):
    """A report may lack a score that the task can have, such as TER with ter=False."""

    def fail(*_):
        raise UserError("The task has no score 'TER'.")

    def execute_runs(planned, evaluate, workdir, jobs, on_finished):
        on_finished(planned[0])
        return []

    monkeypatch.setattr(sweep, "write_table", fail)
    monkeypatch.setattr(sweep, "execute_runs", execute_runs)
    with pytest.raises(UserError, match="no score 'TER'"):
        sweep.main([str(path), f"--workdir={tmp_path / 'out'}"])
    assert "no score 'TER'" in caplog.text
